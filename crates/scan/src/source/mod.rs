//! Source families: where items come from.

pub mod directory;
pub mod ignored;
pub mod names;
