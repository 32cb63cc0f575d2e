//! Sealed slices: old owners of windows, in files that are written once and never changed.
//!
//! A slice file is durable before sled refers to it, and sled refers to it before the runs of its owners are removed. So after a crash
//! an owner is in a slice, in a run, or in both. What changes later is in sled: up to which offset the owners of a
//! partition count, and which identities are forgotten ([`SliceEntry`]).

mod entry;
mod handle;
mod merging;
mod registry;
mod retry;
mod slices;
mod stored;
mod task;

use entry::SliceEntry;
pub(super) use handle::HandleSealing;
pub(super) use registry::{SealedSlices, registered_error};
pub(super) use slices::{SealedSlice, SliceReadError};
pub(super) use stored::read_all;
#[cfg(test)]
pub(super) use task::write_merged;
