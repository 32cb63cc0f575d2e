//! The stored owners of forgotten identities, searched part by part during a restore.
//!
//! A table of fixed size evicts owners, and they stay stored. Before a restore continues behind a forget record, it has to
//! find and delete those owners too: a table of another size may load them. Those of a large window take minutes to read.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::dedupe::{Identity, Sequence, WindowId};
use crate::ports::{Store, StoreError};

/// Forgotten identities, and the search for their owners.
#[derive(Debug)]
pub struct Forgetting {
    /// Which identities are forgotten.
    pub identities: Vec<Identity>,
    /// The windows still to be searched; the last one is being searched.
    windows: Vec<WindowId>,
    /// Where reading continues.
    from: Sequence,
    /// The owners that were found.
    found: BTreeMap<WindowId, Vec<(Sequence, Identity)>>,
}

impl Forgetting {
    /// Begins the search in these windows.
    pub fn new(identities: Vec<Identity>, windows: Vec<WindowId>) -> Self {
        Self { identities, windows, from: 0, found: BTreeMap::new() }
    }

    /// Whether all windows have been searched.
    pub fn is_done(&self) -> bool {
        self.windows.is_empty()
    }

    /// The owners that were found in a window.
    pub fn found(&mut self, window: WindowId) -> Vec<(Sequence, Identity)> {
        self.found.remove(&window).unwrap_or_default()
    }

    /// Reads owners until all are read, or until `is_spent`; at least one run of them.
    pub fn read(&mut self, store: &impl Store, is_spent: impl Fn() -> bool) -> Result<(), StoreError> {
        while let Some(window) = self.windows.last().copied() {
            let (identities, owners) = (&self.identities, self.found.entry(window).or_default());
            let rest = store.scan_from(window, self.from, &mut |run| {
                for identity in identities {
                    owners.extend(run.numbers_of(*identity).map(|number| (number, *identity)));
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
