//! Owners that are undone, part by part: the store reads all owners of a window for that, which takes minutes for a large one.

use crate::dedupe::{Coordinates, JournalId, Sequence, WindowId, Windows};
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::ports::{Store, StoreError, Undone};

/// Owners of partitions at or beyond an offset, in all windows of a journal, that are being removed from these and from the store.
#[derive(Debug)]
pub struct Undoing {
    /// From where on, for each partition.
    from: Vec<Coordinates>,
    /// The windows that still have such owners; those of the last one are being undone.
    left: Vec<WindowId>,
    /// The number at which that continues.
    next: Sequence,
}

impl Undoing {
    /// Begins to undo the owners from these coordinates on.
    pub fn new(journal: JournalId, windows: &Windows, from: &[Coordinates]) -> Self {
        let mut left = unnamed_first(windows.iter().map(|(kind, _)| kind.window(journal)).collect());
        left.reverse();
        Self { from: from.to_vec(), left, next: 0 }
    }

    /// Undoes owners until all are undone, or until `is_over`; at least one part of the store. Returns whether all are.
    pub fn advance(
        &mut self,
        store: &mut impl Store,
        windows: &mut Windows,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, StoreError> {
        while let Some(id) = self.left.last().copied() {
            let Undone { owners, next } = store.undo(id, &self.from, self.next)?;
            if let Some(window) = windows.of_kind(id.kind()) {
                for (number, identity) in owners {
                    window.forget(number, identity);
                }
            }
            self.next = next.unwrap_or(0);
            if next.is_none() {
                self.left.pop();
            }
            if is_over() {
                break;
            }
        }
        Ok(self.left.is_empty())
    }
}
