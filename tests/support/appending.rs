//! Short forms of the calls of a store.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]

use std::slice;

use dedupd::dedupe::{Block, Identity, Offset, WindowId};
use dedupd::ports::{Head, Store, StoreError};

pub trait Appending: Store {
    /// Appends a block whose owners have the next numbers.
    fn put(&mut self, block: &Block, head: Head) -> Result<(), StoreError> {
        self.put_all(slice::from_ref(block), head)
    }

    /// Appends blocks whose owners have the next numbers.
    fn put_all(&mut self, blocks: &[Block], head: Head) -> Result<(), StoreError> {
        let Some(first) = blocks.first() else { return Ok(()) };
        self.append_all(blocks, self.next_number(first.window)?, head)
    }

    /// The identity of the owner at an offset. Reads all owners.
    fn identity_at(&self, window: WindowId, offset: Offset) -> Result<Option<Identity>, StoreError> {
        let mut found = None;
        self.scan(window, &mut |run| {
            found = found.or(run.owners.iter().find(|it| it.offset == offset).and_then(|it| it.identity));
            Ok(())
        })?;
        Ok(found)
    }
}

impl<S: Store + ?Sized> Appending for S {}
