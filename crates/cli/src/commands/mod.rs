//! One file per subcommand.

pub(crate) mod completions;
pub(crate) mod scan;
