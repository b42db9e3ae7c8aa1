//! One file per subcommand.

pub(crate) mod completions;
pub(crate) mod rules;
pub(crate) mod runs;
pub(crate) mod scan;
pub(crate) mod shards;
pub(crate) mod worker;
