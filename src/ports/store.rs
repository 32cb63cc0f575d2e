//! The local store, as the pipeline sees it.

use std::ops::ControlFlow;

use crate::dedupe::{Block, BlockView, Coordinates, Identity, Offset, PartitionId};

/// How much of a partition's local state is real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Raw offset up to which the local blocks are known to be committed. Owners at or beyond it
    /// are hearsay.
    pub confirmed: Offset,
    /// Where reading the state topic continues to get what lies beyond `confirmed`: behind the marker of the last transaction,
    /// where that is known.
    pub state_next: Offset,
    /// Stream time at `confirmed`, ms since the epoch.
    pub stream_time_ms: i64,
    /// The last block appended: its CRC32C, and the raw offset after the last it covers.
    /// The only block that may lie beyond `confirmed`; the committed offset's metadata names the
    /// block that was committed last, so that the two can be compared.
    pub tail: Option<(u32, Offset)>,
    /// The last block at or before `confirmed`, in the same form: what the committed offset names if the last block
    /// appended was not committed.
    pub settled: Option<(u32, Offset)>,
    /// How many times identities were taken back in the partition, as far as this state knows.
    pub forgets: u64,
    /// Identities that arrived before this stream time may be missing, ms since the epoch; 0 when none is known to be.
    pub incomplete_ms: i64,
}

/// Called with one stored block after the other, until it breaks off.
pub type Visit<'a> = &'a mut dyn FnMut(&BlockView<'_>) -> Result<ControlFlow<()>, StoreError>;

/// The local block store. A cache: every method may lose the state, none may invent any.
pub trait Store {
    /// Takes the partition: from now on this handle alone may change it. False when another one may
    /// have changed it since this one last took it. A store with one handle is always held.
    fn hold(&mut self, _partition: PartitionId) -> bool {
        true
    }
    /// What is known of the partition; `None` when nothing is stored.
    fn head(&self, partition: PartitionId) -> Result<Option<Head>, StoreError>;
    /// Adds a block at the end and sets the head, atomically.
    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError>;
    /// Sets the head alone.
    fn set_head(&mut self, partition: PartitionId, head: Head) -> Result<(), StoreError>;
    /// Visits the blocks whose first offset is at or beyond `from`, by rising first offset, until `visit` breaks
    /// off. Returns the `from` that continues with the block after the last one visited; `None` at the end.
    fn scan_from(
        &self,
        partition: PartitionId,
        from: Offset,
        visit: Visit<'_>,
    ) -> Result<Option<Offset>, StoreError>;
    /// Visits all blocks by rising first offset. Takes as long as it takes: a worker scans in slices.
    fn scan(
        &self,
        partition: PartitionId,
        visit: &mut dyn FnMut(&BlockView<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.scan_from(partition, 0, &mut |view| visit(view).map(ControlFlow::Continue)).map(drop)
    }
    /// How many identities the stored blocks hold, without reading them: for sizing and progress.
    fn ids(&self, partition: PartitionId) -> Result<u64, StoreError>;
    /// Removes every owner at or beyond `from` and returns them.
    fn truncate(
        &mut self,
        partition: PartitionId,
        from: Offset,
    ) -> Result<Vec<(Offset, Identity)>, StoreError>;
    /// Removes these owners from their blocks and sets the head; owners that are not there are gone already.
    fn forget(&mut self, partition: PartitionId, owners: &[Offset], head: Head) -> Result<(), StoreError>;
    /// Removes blocks whose owners are all below `first`.
    fn expire(&mut self, partition: PartitionId, first: Offset) -> Result<(), StoreError>;
    /// The identity owned by the record at `owner`, if it owns one.
    fn identity_of(&self, owner: Coordinates) -> Result<Option<Identity>, StoreError>;
    /// Whether the record at `owner` owns this identity; `None` when it owns none.
    fn owns(&self, owner: Coordinates, identity: Identity) -> Result<Option<bool>, StoreError> {
        Ok(self.identity_of(owner)?.map(|known| known == identity))
    }
    /// Forgets the partition.
    fn clear(&mut self, partition: PartitionId) -> Result<(), StoreError>;
    /// Bytes that everything stored takes up on disk; `None` where that is not known.
    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
    /// Makes what was written durable against power loss.
    fn sync(&mut self) -> Result<(), StoreError>;
}

/// The local store failed. The state topic still has everything; the directory must be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Stored bytes are damaged.
    #[error("local state is damaged: {0}")]
    Corrupt(String),
    /// The disk refused.
    #[error("local state cannot be written or read: {0}")]
    Io(String),
    /// The partition is in the hands of another worker of this process.
    #[error("the local state of partition {0} is now with another worker of this process")]
    Taken(PartitionId),
}

impl StoreError {
    /// What came of a call, `None` when the partition was taken.
    pub fn unless_taken<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Self::Taken(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }
}
