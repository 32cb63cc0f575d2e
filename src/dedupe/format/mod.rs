//! The persistent formats: what later versions must read. `tests/formats.rs` compares each with a golden file.

mod block;
mod checkpoint;
mod entry;
mod epoch;
mod forget_record;
mod slice;
mod state_key;
mod version;
mod window_checkpoint;

pub use block::{Block, BlockError, Owner};
pub use checkpoint::{Checkpoint, LastEntry};
pub use entry::{Entry, EntryEnd, EntryName, EntryReader, JournalRecord, Section};
pub use epoch::Epoch;
pub use forget_record::ForgetRecord;
pub use slice::{
    KnownOwner, OwnerLayout, PAGE_BYTES, SealedRange, ShardEntry, SliceCover, SliceError, SliceFooter,
    SliceMark, SlicePage, SlicePartition,
};
pub use state_key::StateKey;
pub use version::other_version;
pub use window_checkpoint::WindowCheckpoint;
