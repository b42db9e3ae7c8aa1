//! One file per subcommand.

pub(crate) mod completions;
pub(crate) mod dht;
mod dht_output;
pub(crate) mod hook;
pub(crate) mod node;
mod node_config;
mod node_log;
mod node_screen;
mod node_sockets;
mod node_top;
pub(crate) mod rules;
pub(crate) mod runs;
pub(crate) mod scan;
pub(crate) mod shards;
pub(crate) mod worker;
