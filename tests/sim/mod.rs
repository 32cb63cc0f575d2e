//! A cluster, a group, stores and a clock in memory, all moved by one seed, and the real worker on them.
//!
//! One seed is one history: everything that happens, faults included, follows from it, on one thread.
//! The worker meets nothing of this but the ports.

mod ask;
mod audit;
mod chance;
mod cluster;
mod config;
mod decay;
mod group;
mod life;
mod raw;
mod side;
mod sink;
mod source;
mod state_log;
mod store;
mod tx_log;
mod universe;

pub use chance::{Counts, Fault};
pub use life::{FORGOTTEN, Outcome, Setting, run};
pub use universe::Sabotage;
