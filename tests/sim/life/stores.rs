//! The local stores of the processes.

use dedupd::dedupe::HashKind;

use super::*;

/// One in so many histories has the real store, which takes longer.
pub(super) const REAL_STORE: u64 = 50;

impl Life {
    /// The processes have stores on disk.
    pub(super) fn use_real_stores(&mut self) {
        for process in &mut self.processes {
            process.store = SimDisk::real(self.universe.is_topic_wide, HashKind::Xxh3);
        }
    }

    pub(super) fn sealed_on_disk(&self) -> u64 {
        let is_real = |process: &Process| process.store.in_memory().is_none();
        if self.processes.iter().any(is_real) { self.universe.sealed.get() } else { 0 }
    }

    /// Copies stores for restarts with an older one, and damages stored blocks.
    pub(super) fn snapshot_stores(&mut self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        for Process { store, older, .. } in &mut self.processes {
            if cluster.chance.hit(Fault::Snapshot) {
                older.push(store.snapshot());
            }
            rot(store, &mut cluster.chance);
        }
    }

    /// A process starts with its store, an older one, or none.
    pub(super) fn choose_store(&mut self, process: usize) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let Process { store, older, .. } = &mut self.processes[process];
        if cluster.chance.hit(Fault::StoreCleared) {
            *store = store.another_empty();
        } else if !older.is_empty() && cluster.chance.hit(Fault::StoreOld) {
            *store = older[cluster.chance.rng.usize(0..older.len())].snapshot();
        }
        survive(store, &mut cluster, process);
    }
}
