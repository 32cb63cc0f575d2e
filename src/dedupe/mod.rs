//! The pure core: decisions as functions of values.
//!
//! No code in this module reads a clock, a file or a socket, or depends on Kafka or sled.
//! Therefore tests can compare it with a plain map.

pub mod coordinates;
pub mod format;
pub mod identity;
pub mod window;

pub use coordinates::{Coordinates, Offset, PartitionId};
pub use format::{
    Block, BlockError, BlockView, Checkpoint, Dropped, Epoch, FilterLayout, ForgetRecord, GridLayout,
    StateKey, Tail, WindowCheckpoint,
};
pub use identity::{
    Fields, Fingerprint, HashKind, Hasher, IdSource, IdSourceError, Identity, IdentityRule, KindId, KindRule,
    MOST_PARTITIONS, NoFingerprint, WindowId,
};
pub use window::{
    Anchor, Bloom, BloomLimits, Bounds, Index, IndexBytes, Look, Owners, TimeSource, Verdict, Window,
    WindowLimits, Windows, bloom, index, resume,
};
