//! The pure core: decisions as functions of values.
//!
//! No code in this module reads a clock, a file or a socket, or depends on Kafka or sled.
//! Therefore tests can compare it with a plain map.

pub mod coordinates;
pub mod format;
pub mod identity;
pub(crate) mod varint;
pub mod window;

pub use coordinates::{Coordinates, JournalId, Offset, PartitionId, Sequence};
pub use format::*;
pub use identity::*;
pub use window::sealed::{
    FILTERS, FilterBits, FilterPart, FirstLevels, MERGED_PART, OwnerScan, SMALLEST_SLICE, SealedBytes, Slice,
    SliceBuilder, SliceCoverage, slice_ids,
};
pub(crate) use window::{Anchor, Windows, resume};
pub use window::{
    BloomPart, IndexBytes, IndexKey, OwnerIndex, OwnerRun, Owners, Positions, RecordTime, StampedOwner,
    StoredOwner, StreamTime, TimeSource, Verdict, Window, WindowBounds, WindowLimits, for_each_run,
};
