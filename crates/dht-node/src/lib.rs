//! A node of the DHT on real sockets, to run as a daemon or inside an application.
//!
//! ```
//! use tessera_dht_node::Node;
//!
//! let node = Node::builder().lanes(1).start()?;
//! println!("others join by {}", node.address());
//! let stored = node.put(b"hello".to_vec()).wait()?; // or `.await` on any executor
//! assert_eq!(node.get(stored.id).wait()?.bytes, b"hello");
//! node.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On an executor, here tokio's:
//!
//! ```
//! # use tessera_dht_node::Node;
//! # let executor = tokio::runtime::Builder::new_current_thread().build()?;
//! # executor.block_on(async {
//! let node = Node::builder().lanes(1).start_async().await?;
//! let film = node.put(b"a film".to_vec()).await?.id;
//! node.announce([film]).await?;
//! assert_eq!(node.status().await?.held("published"), 1);
//! node.shutdown_async().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A *lane* is an event loop that owns its socket, timers, log and state; a node is several lanes that share nothing. The lanes of
//! all nodes of a process take turns on a few threads, unless a node is [pinned](NodeBuilder::pin) or
//! [told not to](NodeBuilder::share_threads).
//! The DHT's rules live in `tessera-dht`, the lanes in `tessera-lanes`; this crate is the shell around both:
//!
//! - [`Node`] and [`NodeBuilder`]: the embeddable node; [`Call`] is what its methods return
//! - [`values`] and [`mutable`]: values of both kinds; [`providers`]: the nodes that offer an id
//! - [`peer_addr`]: addresses of nodes; [`data_dir`]: the files that survive a restart
//! - [`status`], [`explain`], `metrics`: the node's state, and how an answer came about
//! - [`control`]: the socket by which other programs on this machine use a running node
//! - `handler`, `walk`, `clock`: one lane; `inner`, `oneshot`: the way of a command to it, and of the answer back; `turns`: the
//!   order of writers of one id; `timer`: how long callers wait
//! - [`simulated`]: one lane for a runtime in virtual time
//! - `births`, `published`: the successor of a lane without a log gets the published values; `forget`, `parts_in_use`,
//!   `unfinished`: no part of a large value is left behind
//!
//! Deliberately absent: an async runtime, a lock between lanes, and any rule of the DHT.

#![forbid(unsafe_code)]

mod births;
mod builder;
mod call;
mod clock;
pub mod control;
pub mod data_dir;
mod error;
pub mod explain;
mod forget;
mod handler;
mod inner;
mod metrics;
pub mod mutable;
mod node;
mod oneshot;
mod parts_in_use;
pub mod peer_addr;
pub mod providers;
mod published;
pub mod simulated;
pub mod status;
mod timer;
mod turns;
mod unfinished;
pub mod values;
mod walk;

pub use builder::{NodeBuilder, StartError};
pub use call::Call;
pub use error::NodeError;
pub use mutable::{MutableKey, PutMutable};
pub use node::Node;
pub use peer_addr::PeerAddr;
pub use tessera_contracts::point::{ContentId, NodeId, Point};
pub use tessera_dht::node::command::Privacy;
pub use tessera_lanes::runtime::ReliefPolicy;
pub use tessera_lanes::wal::Durability;
