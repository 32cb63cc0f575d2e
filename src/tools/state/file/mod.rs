//! The export file: a header, encoded blocks, a footer. docs/state-format.md describes every byte.

mod read;
mod write;

use serde::{Deserialize, Serialize};

pub use read::{FileFault, FileReader, Piece};
pub use write::Writer;

use super::whole::StoredSummary;
use crate::dedupe::{EntryName, Offset, PartitionId, Sequence, WindowId};
use crate::ports::{Covered, Head};
use crate::store::Binding;

/// The first bytes: magic and version.
const MAGIC: [u8; 8] = *b"DDSTATE3";
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
    /// The windows, by ascending number. Their blocks follow in this order.
    pub windows: Vec<FileWindow>,
}

/// One window: its head, and the number of its identities. They are numbered from 0 on, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWindow {
    /// Its number.
    pub window: WindowId,
    /// [`Head::confirmed`].
    pub confirmed: Sequence,
    /// [`Head::state_next`].
    pub state_next: Offset,
    /// [`Head::time_ms`].
    pub time_ms: i64,
    /// [`Head::last_entry`].
    pub last_entry: Option<EntryName>,
    /// [`Head::confirmed_entry`].
    #[serde(rename = "settled")]
    pub confirmed_entry: Option<EntryName>,
    /// [`Head::incomplete_ms`].
    pub incomplete_ms: i64,
    /// Identities that arrived up to this time of the window's clock were removed, epoch milliseconds: they are too old for the window, or in filters
    /// only.
    pub missing_ms: i64,
    /// [`Head::covered`], by ascending partition.
    pub covered: Vec<FileCovered>,
    /// Number of its identities in the file.
    pub ids: u64,
}

/// [`Covered`] of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileCovered {
    partition: PartitionId,
    next: Offset,
    time_ms: i64,
}

impl FileWindow {
    /// A window with this head and so many identities.
    #[must_use]
    pub fn new(window: WindowId, head: &Head, missing_ms: i64, ids: u64) -> Self {
        let covered = head.covered.iter().map(|(partition, covered)| {
            let Covered { next, time_ms } = *covered;
            FileCovered { partition: *partition, next, time_ms }
        });
        Self {
            window,
            confirmed: head.confirmed,
            state_next: head.state_next,
            time_ms: head.time_ms,
            last_entry: head.last_entry,
            confirmed_entry: head.confirmed_entry,
            incomplete_ms: head.incomplete_ms,
            missing_ms,
            covered: covered.collect(),
            ids,
        }
    }

    pub(super) fn of(window: WindowId, summary: &StoredSummary, missing_ms: i64) -> Self {
        // Only owners that are there are counted.
        let confirmed = summary.ids() - summary.ids_beyond_head;
        Self { confirmed, ..Self::new(window, &summary.head, missing_ms, summary.ids()) }
    }

    /// The head that an import writes to the local store.
    #[must_use]
    pub fn head(&self) -> Head {
        let covered = self.covered.iter().map(|it| {
            let FileCovered { partition, next, time_ms } = *it;
            (partition, Covered { next, time_ms })
        });
        Head {
            confirmed: self.confirmed,
            state_next: self.state_next,
            last_entry: self.last_entry,
            confirmed_entry: self.confirmed_entry,
            time_ms: self.time_ms,
            incomplete_ms: self.incomplete_ms,
            covered: covered.collect(),
        }
    }
}
