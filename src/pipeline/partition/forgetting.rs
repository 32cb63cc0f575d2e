//! The stored owners of forgotten identities, searched slice by slice during a restore.
//!
//! A table of fixed size evicts owners, and they stay stored. Before a restore continues behind a forget record, it has to
//! find and delete those owners too: a table of another size may load them. Those of a large window take minutes to read.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::dedupe::{ForgetRecord, Offset, Sequence, WindowId};
use crate::ports::{Store, StoreError};

/// A forget record, and the search for its owners.
#[derive(Debug)]
pub struct Forgetting {
    /// Offset of the record in the state topic.
    pub offset: Offset,
    /// Its content: which identities are forgotten, and the owners that the writer knew.
    pub record: ForgetRecord,
    /// The windows still to be searched; the last one is being searched.
    windows: Vec<WindowId>,
    /// Where reading continues.
    from: Sequence,
    /// The owners that were found.
    found: BTreeMap<WindowId, Vec<Offset>>,
}

impl Forgetting {
    /// Begins the search in these windows.
    #[must_use]
    pub fn new(offset: Offset, record: ForgetRecord, windows: Vec<WindowId>) -> Self {
        Self { offset, record, windows, from: 0, found: BTreeMap::new() }
    }

    /// Whether all windows have been searched.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.windows.is_empty()
    }

    /// The owners that were found in a window. A forget record may be read a second time, after blocks that were written later:
    /// the owners in those blocks are not among them.
    pub fn found(&mut self, window: WindowId) -> Vec<Offset> {
        self.found.remove(&window).unwrap_or_default()
    }

    /// Reads owners until all are read, or until `is_spent`; at least one run of them.
    pub fn read(&mut self, store: &impl Store, is_spent: impl Fn() -> bool) -> Result<(), StoreError> {
        while let Some(window) = self.windows.last().copied() {
            let (record, owners) = (&self.record, self.found.entry(window).or_default());
            let rest = store.scan_from(window, self.from, &mut |run| {
                for (_, identity) in &record.owners {
                    owners.extend(run.offsets_of(*identity).filter(|owner| *owner < record.at));
                }
                Ok(if is_spent() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if let Some(rest) = rest {
                self.from = rest;
                return Ok(());
            }
            self.from = 0;
            self.windows.pop();
        }
        Ok(())
    }
}
