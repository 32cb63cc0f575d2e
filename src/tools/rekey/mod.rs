//! `dedupd rekey`: writes every record of one or many topics to one topic, to the partition that follows from its id.
//!
//! `dedupd run` in partition scope reads that topic, and several of its instances share the partitions. This stage has no
//! state and no transactions: what it repeats is a duplicate that the next stage drops.

mod command;
mod in_flight;
mod logs;
mod partitioner;
mod stage;

pub use command::command;
