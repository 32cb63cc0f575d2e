//! Whether another program writes to a journal.

use crate::dedupe::Offset;

/// What this worker has written to a journal since its last break: an abort, another producer, or an assignment. Markers of others may be there
/// after one.
#[derive(Debug, Default)]
pub(crate) struct OwnRecords {
    /// One past the last record. Its marker is there.
    end: Option<Offset>,
    is_reported: bool,
}

impl OwnRecords {
    /// A transaction with this many records was committed, the last of them before `end`. Returns how many offsets others have taken since the
    /// one before, once.
    pub(crate) fn committed(&mut self, records: u64, end: Offset) -> Option<u64> {
        let marker = self.end.replace(end)?;
        let others = end.saturating_sub(marker.saturating_add(1).saturating_add(records));
        (others > 0 && !std::mem::replace(&mut self.is_reported, true)).then_some(others)
    }

    pub(crate) fn interrupt(&mut self) {
        self.end = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_others_take_between_two_transactions_are_reported_once() {
        let mut own = OwnRecords::default();
        // The first one follows what is not known.
        assert_eq!(own.committed(3, 10), None);
        assert_eq!(own.committed(2, 13), None, "the marker at 10, the records at 11 and 12");
        own.interrupt();
        assert_eq!(own.committed(1, 40), None);
        assert_eq!(own.committed(1, 42), None);
        assert_eq!(own.committed(1, 46), Some(2), "43 and 44 are of others");
        assert_eq!(own.committed(1, 60), None, "it is known");
    }
}
