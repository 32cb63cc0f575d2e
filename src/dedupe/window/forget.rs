//! Taking an identity back: whoever sends it again is heard again.

use std::ops::ControlFlow;

use super::{Owners, Window};
use crate::dedupe::index::Look;
use crate::dedupe::{Identity, Offset};

impl Window {
    /// The committed owners of an identity in the exact part, each with the stream time at which it had
    /// arrived at the latest; those that are too old to count are left out.
    pub fn owners<O: Owners>(&self, look: &Look, owners: &O) -> Result<Vec<(Offset, i64)>, O::Error> {
        let oldest = self.time.ms().saturating_sub(self.exact_ms);
        let mut found = Vec::new();
        let asked = self.index.candidates(look, |owner| {
            let arrived = self.marks.time_of(owner);
            if self.place_of_pending(owner).is_some() || (arrived > 0 && arrived < oldest) {
                return ControlFlow::Continue(());
            }
            match owners.owns(owner, look.identity) {
                Ok(true) => found.push((owner, arrived)),
                Ok(false) => {}
                Err(error) => return ControlFlow::Break(error),
            }
            ControlFlow::Continue(())
        });
        asked.break_value().map_or(Ok(found), Err)
    }

    /// Stream time at which an owner had arrived at the latest, ms since the epoch; 0 while unknown.
    #[must_use]
    pub fn arrived_ms(&self, owner: Offset) -> i64 {
        let pending = self.place_of_pending(owner).and_then(|place| self.arrived_ms.get(place).copied());
        pending.unwrap_or_else(|| self.marks.time_of(owner))
    }

    /// The beginning of the slice whose filter has the identity, of those that still count, the exact
    /// part included; `None` when no filter has it, or there is none.
    #[must_use]
    pub fn slice_of(&self, look: &Look) -> Option<i64> {
        self.beyond.as_ref()?.probably(look, self.time.ms(), i64::MAX)
    }

    /// The beginning of the slice that an arrival at this stream time is filed in, ms since the epoch;
    /// `None` without filters.
    #[must_use]
    pub fn slice_begin(&self, time_ms: i64) -> Option<i64> {
        Some(self.beyond.as_ref()?.limits().slice_at(time_ms).start)
    }

    /// Takes back a committed owner of an identity. Bits of filters cannot be taken back; what they say
    /// of this identity is ignored until it is admitted again, or until the filters are built anew from
    /// blocks that do not hold it any more.
    pub fn forget(&mut self, owner: Offset, identity: Identity) {
        if owner >= self.index.first_live() && self.index.remove(&Look::at(identity), owner) {
            self.marks.forget(owner);
        }
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.forget(identity);
        }
    }
}
