//! Counts and visits all owners of a window: those in slices, then the others.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::dedupe::{EntryName, Owner, Sequence, StoredOwner, WindowId};
use crate::ports::{Head, Store, StoreError};

/// Owners of slices that are in memory at a time, 40 bytes each. A slice is not in the order of times, so it is read once for each part.
const OWNERS_AT_ONCE: u64 = 10 << 20;
/// Most of these that are visited at once.
const OWNERS_PER_VISIT: usize = 4_096;
/// A time is in the minute that it is divided by.
const MINUTE_MS: i64 = 60_000;

/// Summary of a stored window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredSummary {
    /// Its own head.
    pub head: Head,
    /// [`Store::missing_ms`].
    pub missing_ms: i64,
    /// Number of owners in slices, by the minute of their stream time.
    pub sealed: BTreeMap<i64, u64>,
    /// Number of the other owners.
    pub unsealed_ids: u64,
    /// Number of those that are not known to be committed. The next start decides whether they count.
    pub unconfirmed_ids: u64,
    /// Number of those with numbers from [`Head::confirmed`] on.
    pub ids_beyond_head: u64,
    /// Number of runs that have them.
    pub runs: u64,
}

impl StoredSummary {
    /// Number of owners in slices.
    #[must_use]
    pub fn sealed_ids(&self) -> u64 {
        self.sealed.values().sum()
    }

    /// Number of all owners.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.sealed_ids() + self.unsealed_ids
    }
}

/// Counts what a window has; `None` if nothing is stored for it. What is stored up to the `trusted` entry is confirmed. Reads all owners.
pub fn summarise(
    store: &impl Store,
    window: WindowId,
    trusted: Option<EntryName>,
) -> Result<Option<StoredSummary>, StoreError> {
    let Some(head) = store.head(window)? else { return Ok(None) };
    let confirmed = head.counted(trusted).unwrap_or(Sequence::MAX);
    let missing_ms = store.missing_ms(window)?;
    let mut summary = StoredSummary { head, missing_ms, ..StoredSummary::default() };
    store.scan_sealed(&[window], &mut |_, _, owner| {
        *summary.sealed.entry(owner.time_ms.div_euclid(MINUTE_MS)).or_default() += 1;
        Ok(())
    })?;
    for_each_unsealed(store, window, |number, owners| {
        let from = |first: Sequence| {
            let known =
                (number..).zip(owners).filter(|(number, owner)| *number >= first && owner.identity.is_some());
            known.count() as u64
        };
        summary.runs += 1;
        summary.unsealed_ids += from(number);
        summary.unconfirmed_ids += from(confirmed);
        summary.ids_beyond_head += from(summary.head.confirmed);
        Ok(())
    })?;
    Ok(Some(summary))
}

/// Visits all owners of a window that `summary` describes, some at a time: those in slices in the order of their times, then the others in the
/// order of their arrival. Owners in filters only are left out.
pub fn scan_whole(
    store: &impl Store,
    window: WindowId,
    summary: &StoredSummary,
    visit: &mut dyn FnMut(&[Owner]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for part in parts(&summary.sealed, OWNERS_AT_ONCE) {
        let mut owners = Vec::new();
        store.scan_sealed(&[window], &mut |_, identity, owner| {
            if part.contains(&owner.time_ms.div_euclid(MINUTE_MS)) {
                owners.push(Owner { at: owner.at, time_ms: owner.time_ms, identity, digest: owner.digest });
            }
            Ok(())
        })?;
        owners.sort_unstable_by_key(|owner| (owner.time_ms, owner.at));
        owners.chunks(OWNERS_PER_VISIT).try_for_each(&mut *visit)?;
    }
    for_each_unsealed(store, window, |_, owners| {
        let known = owners.iter().filter_map(|it| {
            Some(Owner { at: it.at, time_ms: it.time_ms, identity: it.identity?, digest: it.digest })
        });
        visit(&known.collect::<Vec<_>>())
    })
}

/// Divides minutes into parts of at most `most` owners; a minute with more is a part of its own.
fn parts(minutes: &BTreeMap<i64, u64>, most: u64) -> Vec<Range<i64>> {
    let (mut parts, mut left) = (Vec::<Range<i64>>::new(), 0);
    for (minute, count) in minutes {
        if let Some(part) = parts.last_mut().filter(|_| *count <= left) {
            part.end = minute + 1;
            left -= count;
        } else {
            parts.push(*minute..minute + 1);
            left = most.saturating_sub(*count);
        }
    }
    parts
}

/// Visits runs without the owners that are in slices, each with the number of its first owner.
pub(super) fn for_each_unsealed(
    store: &impl Store,
    window: WindowId,
    mut visit: impl FnMut(Sequence, &[StoredOwner]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let sealed = sealed_end(store, window);
    store.scan(window, &mut |run| {
        let skipped = usize::try_from(sealed.saturating_sub(run.number)).unwrap_or(usize::MAX);
        match run.owners.get(skipped..) {
            None | Some([]) => Ok(()),
            Some(owners) => visit(run.number.max(sealed), owners),
        }
    })
}

/// One past the number of the last owner in a slice. Other stored owners below it are in a slice too, or do not count.
pub fn sealed_end(store: &impl Store, window: WindowId) -> Sequence {
    store.sealed(window).last().map_or(0, |range| range.next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_minutes_and_cover_all_of_them() {
        let minutes = BTreeMap::from([(2, 5), (3, 5), (4, 1), (9, 30), (10, 10)]);
        assert_eq!(parts(&minutes, 10), [2..4, 4..5, 9..10, 10..11]);
        assert_eq!(parts(&minutes, 1_000).as_slice(), std::slice::from_ref(&(2..11)));
        assert_eq!(parts(&minutes, 0).len(), 5);
        assert_eq!(parts(&BTreeMap::new(), 10), []);
    }
}
