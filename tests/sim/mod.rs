//! Runs the real worker on a cluster, a consumer group, stores and a clock in memory, all driven by one seed.
//!
//! One seed is one history: the seed determines everything that happens, including faults. A history runs on one thread.
//! The worker uses the simulation only through its ports.

mod audit;
mod chance;
mod clock;
mod cluster;
mod config;
mod content;
pub mod controls;
mod decay;
mod disk;
mod group;
mod life;
mod offsets;
mod operator;
mod pace;
mod raw;
mod side;
mod sink;
mod source;
mod state_log;
mod store;
pub mod total;
mod tx_log;
mod universe;

pub use chance::{Counts, Fault};
pub use cluster::Marked;
pub use life::{
    CAUGHT_UP, COMMIT_FAULTS, COMPARED, EVICTED, FILTER_HITS, FORGOTTEN, HANDED_OVER, JOINED, Outcome,
    SEALED, SEALED_HITS, SEALED_ON_DISK, SlowSearch, TOPIC_SEEDS, after_an_outage, compact_the_last_record,
    count, evidence_over_a_slow_link, expire_idle_partitions, follow_an_undone_transaction,
    forget_before_a_restore, forget_what_was_undone, limit_an_idle_partition, load_slowly,
    open_a_foreign_transaction, over_a_slow_link, read_unevenly, replace_the_producer_in_a_wait,
    restore_a_limited_partition, restore_a_long_log, restore_forgotten_slowly, restore_the_edge_of_a_window,
    run, seal_the_first_block, search_slowly, tear_the_first_transaction, undo_a_transaction,
    undo_two_transactions,
};
pub use universe::{Sabotage, Setting};
