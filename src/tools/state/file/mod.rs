//! The export file: a header, encoded blocks, a footer. docs/state-format.md describes every byte.

mod read;
mod write;

use serde::{Deserialize, Serialize};

pub use read::{FileFault, FileReader, Piece};
pub use write::Writer;

use super::find::StoredSummary;
use crate::dedupe::{EntryName, Offset, Tail, WindowId};
use crate::ports::Head;
use crate::store::Binding;

/// The first bytes: magic and version.
const MAGIC: [u8; 8] = *b"DDSTATE2";
/// Kinds of frames. A frame consists of its kind (1 byte), the length of its content (u32, little endian), and its
/// content.
const HEADER: u8 = 1;
const BLOCK: u8 = 2;
const FOOTER: u8 = 3;
/// Content of the footer: blocks (u64), identities (u64), XXH3-128 of everything before the hash.
const FOOTER_BYTES: u32 = 8 + 8 + 16;

/// First frame: describes the content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHeader {
    /// What the state belongs to.
    pub binding: Binding,
    /// The partitions, by ascending number. Their blocks follow in this order.
    pub partitions: Vec<FilePart>,
}

/// One partition: its head, and the counts of its blocks and identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePart {
    /// Partition of the raw topic.
    #[serde(rename = "partition")]
    pub window: WindowId,
    /// Raw offset up to which the blocks are known to be committed: [`Head::confirmed`].
    pub confirmed: Offset,
    /// State topic offset from which the service continues: [`Head::state_next`].
    pub state_next: Offset,
    /// Stream time at `confirmed`, epoch milliseconds.
    pub stream_time_ms: i64,
    /// The last entry of the journal: [`Head::tail`].
    pub tail: Option<FileTail>,
    /// The last one at or before `confirmed`: [`Head::confirmed_tail`].
    #[serde(default, rename = "settled")]
    pub confirmed_tail: Option<FileTail>,
    /// Identities before this stream time may be missing, epoch milliseconds; 0 when none is known to be.
    #[serde(default)]
    pub incomplete_ms: i64,
    /// Identities that arrived up to this stream time were removed, epoch milliseconds: they are too old for the window, or in filters only.
    #[serde(default)]
    pub missing_ms: i64,
    /// Number of its blocks in the file.
    pub blocks: u64,
    /// Number of identities in them.
    pub ids: u64,
}

/// An entry of the journal, as [`Tail`] names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTail {
    number: u64,
    crc: u32,
    /// One past the last raw offset that its section covers.
    next: Offset,
}

impl From<Tail> for FileTail {
    fn from(Tail { entry: EntryName { number, crc }, next, .. }: Tail) -> Self {
        Self { number, crc, next }
    }
}

impl From<FileTail> for Tail {
    fn from(FileTail { number, crc, next }: FileTail) -> Self {
        Self { entry: EntryName { number, crc }, next, from: None }
    }
}

impl FilePart {
    /// Creates the entry of a partition from its summary.
    #[must_use]
    pub fn of(window: WindowId, summary: &StoredSummary) -> Self {
        let Head { confirmed, state_next, stream_time_ms, tail, confirmed_tail, incomplete_ms } =
            summary.head;
        let (blocks, ids) = (summary.runs + summary.sealed_blocks, summary.ids);
        Self {
            window,
            confirmed,
            state_next,
            stream_time_ms,
            tail: tail.map(FileTail::from),
            confirmed_tail: confirmed_tail.map(FileTail::from),
            incomplete_ms,
            missing_ms: summary.missing_ms,
            blocks,
            ids,
        }
    }

    /// The head that an import writes to the local store.
    #[must_use]
    pub fn head(&self) -> Head {
        let Self { confirmed, state_next, stream_time_ms, tail, confirmed_tail, incomplete_ms, .. } = *self;
        let (tail, confirmed_tail) = (tail.map(Tail::from), confirmed_tail.map(Tail::from));
        Head { confirmed, state_next, stream_time_ms, tail, confirmed_tail, incomplete_ms }
    }
}
