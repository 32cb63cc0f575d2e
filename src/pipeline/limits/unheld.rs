//! Deletes the local state of journals that nothing in this process holds, when the directory reaches its limit.
//!
//! The state of a journal whose partition has moved to another instance stays, so that it loads quickly when it returns. It is a cache, and live windows
//! need the space more. Only in partition scope: otherwise one worker has all partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dedupe::{PartitionId, WindowId};
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::ports::{Store, StoreError};

/// How long nothing has held a journal before its state is deleted: a rebalance may move it to another worker of this process, and
/// standby copies begin some time after the workers.
const UNHELD_TIME: Duration = Duration::from_secs(30);

/// What was done about a directory that has reached its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relief {
    /// All local state is held.
    None,
    /// Some will be deleted, if nothing takes it before.
    Waits,
    /// The state of a journal was deleted.
    Deleted(PartitionId),
}

/// The journals that nothing holds, and since when, as far as that was examined. Monotonic times.
#[derive(Debug, Default)]
pub(crate) struct Unheld(BTreeMap<PartitionId, Duration>);

impl Unheld {
    /// Deletes the state of one journal that this worker does not have. `windows_of` returns the windows of a journal, the one whose
    /// head stands for all of them last.
    ///
    /// It is deleted under the lease of its windows, like a standby copy: another worker can take that at any time, and then finds a head
    /// that is complete, or none. `is_urgent`: the directory has exceeded its limit.
    pub fn relieve(
        &mut self,
        store: &mut impl Store,
        is_own: impl Fn(PartitionId) -> bool,
        windows_of: impl Fn(PartitionId) -> Vec<WindowId>,
        now: Duration,
        is_urgent: bool,
    ) -> Result<Relief, StoreError> {
        let mut relief = Relief::None;
        let mut unheld = BTreeMap::new();
        for id in store.stored_journals().into_iter().filter(|id| !is_own(*id)) {
            let windows = windows_of(id);
            if windows.iter().all(|window| store.acquire_free_lease(*window)) {
                let since = self.0.get(&id).copied().unwrap_or(now);
                let is_due = is_urgent || now.saturating_sub(since) >= UNHELD_TIME;
                let may_delete = is_due && !matches!(relief, Relief::Deleted(_));
                let cleared = if may_delete {
                    store.clear(&unnamed_first(windows.clone())).and_then(|()| store.sync())
                } else {
                    Ok(())
                };
                if StoreError::unless_lease_lost(cleared)?.is_none() {
                    relief = Relief::Waits;
                } else if may_delete {
                    relief = Relief::Deleted(id);
                } else {
                    relief = if relief == Relief::None { Relief::Waits } else { relief };
                    unheld.insert(id, since);
                }
            }
            for window in windows {
                store.release_lease(window);
            }
        }
        self.0 = unheld;
        Ok(relief)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Digest;
    use crate::dedupe::{Coordinates, Identity, OwnerRun, StoredOwner};
    use crate::ports::Head;
    use crate::store::{Binding, SledStore, open};

    fn append(store: &mut SledStore, journal: PartitionId) {
        let owner = |offset| StoredOwner {
            at: Coordinates { partition: journal, offset },
            time_ms: 1,
            identity: Some(Identity(u128::from(offset).to_le_bytes())),
            digest: Digest::NONE,
        };
        let owners: Vec<StoredOwner> = (0..1_000).map(owner).collect();
        let run = OwnerRun { number: 0, times_ms: (1, 1), owners: &owners };
        store.acquire_lease(journal.into());
        store.append(journal.into(), &run, &Head { confirmed: 1_000, ..Head::default() }).unwrap();
    }

    #[test]
    fn state_is_deleted_only_if_nothing_has_held_it_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let opened = open(dir.path(), &Binding::default(), 1 << 20, Duration::from_secs(20)).unwrap();
        let mut worker = opened.store.another();
        let (mut other, mut standby) = (worker.another(), worker.another());
        (0..5).for_each(|partition| append(&mut worker, partition));
        for partition in [1, 2, 3, 4] {
            worker.release_lease(WindowId::from(partition));
        }
        other.acquire_lease(1.into());
        assert!(standby.acquire_free_lease(2.into()));
        let mut unheld = Unheld::default();
        let mut relieve = |worker: &mut SledStore, seconds, is_urgent| {
            let now = Duration::from_secs(seconds);
            unheld.relieve(worker, |id| id == 0, |id| vec![WindowId::from(id)], now, is_urgent).unwrap()
        };
        assert_eq!([0, 29].map(|at| relieve(&mut worker, at, false)), [Relief::Waits, Relief::Waits]);
        assert_eq!(relieve(&mut worker, 30, false), Relief::Deleted(3));
        // The group assigns the other one to a worker of this process.
        other.acquire_lease(4.into());
        assert_eq!(relieve(&mut worker, 31, true), Relief::None);
        other.release_lease(4.into());
        assert_eq!(relieve(&mut worker, 60, false), Relief::Waits, "it was held in between");
        assert_eq!(relieve(&mut worker, 61, true), Relief::Deleted(4));
        assert_eq!(relieve(&mut worker, 99, true), Relief::None);
        assert_eq!(worker.stored_journals(), [0, 1, 2]);
        assert!(worker.set_head(0.into(), &Head::default()).is_ok(), "its own lease stays");
    }
}
