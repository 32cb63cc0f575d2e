//! The pure core: decisions as functions of values.
//!
//! No code in this module reads a clock, a file or a socket, or depends on Kafka or sled.
//! Therefore tests can compare it with a plain map.

mod arrival;
mod beyond;
mod block;
pub mod bloom;
pub mod coordinates;
mod fingerprint;
mod forgotten;
mod growth;
mod id_source;
pub mod identity;
pub mod index;
pub mod json;
mod kind;
mod marks;
mod overflow;
mod prefetch;
pub mod stream_time;
mod table;
mod uuid;
pub mod verdict;
pub mod window;
mod windows;

pub use arrival::{Anchor, resume};
pub use block::{Block, BlockError, BlockParts, BlockView};
pub use bloom::{Bloom, BloomLimits, Layout};
pub use coordinates::{Coordinates, Offset, PartitionId};
pub use fingerprint::{Fingerprint, NoFingerprint};
pub use forgotten::ForgetRecord;
pub use growth::IndexBytes;
pub use id_source::{IdSource, IdSourceError};
pub use identity::{Fields, HashKind, Hasher, Identity, IdentityRule};
pub use index::{Index, Look};
pub use kind::{KindId, KindRule, MOST_PARTITIONS, WindowId};
pub use stream_time::TimeSource;
pub use verdict::Verdict;
pub use window::{Bounds, Lost, Owners, Window, WindowLimits};
pub use windows::{Remembered, Windows};
