//! How much of a partition's local state is confirmed to be committed.

use crate::dedupe::{Checkpoint, Offset, PartitionId, Tail};
use crate::pipeline::error::Fatal;
use crate::pipeline::options::WorkerOptions;
use crate::ports::{Head, LogBounds};

/// How a partition gets its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatePlan {
    /// The local store has everything below the committed offset. Local owners at or beyond `confirmed` are removed.
    Load {
        /// A raw offset, at most the committed offset.
        confirmed: Offset,
    },
    /// The local store is correct below `confirmed`; the rest is read from the state topic, starting at `from`.
    CatchUp {
        /// Local owners at or beyond this raw offset are unconfirmed.
        confirmed: Offset,
        /// Offset of the journal at which reading starts.
        from: Offset,
    },
    /// Everything is read from the state topic.
    Restore,
}

/// Compares the committed offset, its metadata and the local store.
///
/// The checkpoint names the last committed entry of the partition, and the name covers all of its content. So the store has everything up to
/// it if its last entry has that name, or the one before, when the last one was not committed. What is confirmed may lie beyond that
/// entry: the records behind it were duplicates.
pub(crate) fn plan(
    head: Option<Head>,
    committed: Option<Offset>,
    checkpoint: Option<&Checkpoint>,
) -> StatePlan {
    let Some(head) = head else { return StatePlan::Restore };
    let catch_up = StatePlan::CatchUp { confirmed: head.confirmed, from: head.state_next };
    // Without metadata another program has set the offset. Only the journal shows whether it was moved forward or back.
    let Some((committed, checkpoint)) = committed.zip(checkpoint) else { return catch_up };
    let is_named = |tail: Option<Tail>| match (tail, checkpoint.tail) {
        (Some(stored), Some(named)) => stored.names_same(&named),
        (stored, named) => stored.is_none() && named.is_none(),
    };
    if is_named(head.tail) {
        return StatePlan::Load { confirmed: committed };
    }
    if is_named(head.confirmed_tail) {
        // The owners of the last entry may be below an offset that was committed since without them.
        let next = head.confirmed_tail.map_or(0, |tail| tail.next);
        return StatePlan::Load { confirmed: next.min(committed) };
    }
    // An entry that the store takes for committed was undone, or the journal was truncated and written again.
    let number = |tail: Option<Tail>| tail.map_or(0, |tail| tail.entry.number);
    if head.confirmed > committed || number(head.confirmed_tail) >= number(checkpoint.tail) {
        return StatePlan::Restore;
    }
    catch_up
}

/// Whether a journal that no longer holds the offset `from` may have held an entry there or behind it. Local state continues at the marker
/// of its last entry, or behind that marker, where the next entry begins. What a log without open records ends with is a marker, so nothing
/// else was there only if the log ends right behind `from`. Local state that continues at 0 has no last entry.
pub(crate) fn is_behind_the_log(from: Offset, log: &LogBounds) -> bool {
    from < log.low && (from == 0 || from + 1 < log.high)
}

/// What of the local state is a base to continue from: (journal offset, raw offset). Where the journal no longer holds that offset, and held
/// no entry behind it, local state is still complete for a group without an offset.
pub(crate) fn usable(
    local: Option<(Offset, Offset)>,
    log: &LogBounds,
    committed: Option<Offset>,
) -> Option<(Offset, Offset)> {
    let (from, confirmed) = local?;
    if (log.low..=log.stable).contains(&from) {
        return local;
    }
    (committed.is_none() && from < log.low && !is_behind_the_log(from, log)).then_some((log.low, confirmed))
}

/// The error when neither the group nor the state topic holds the position of the partition, although the state topic once
/// did.
pub(crate) fn all_expired(
    options: &WorkerOptions,
    id: PartitionId,
    local: Option<(Offset, Offset)>,
) -> Fatal {
    let local = local.map_or_else(String::new, |(_, confirmed)| {
        format!(" The local state ends at offset {confirmed}, and newer records may have been processed.")
    });
    Fatal::Operator(format!(
        "the group has no offset for partition {id} of topic {}, and the records of that partition in topic {} are \
         deleted: both have expired (offsets.retention.minutes, retention of the state topic). group.start \
         does not apply, because records were processed before.{local} Set the group's offset with \
         kafka-consumer-groups.sh --reset-offsets while dedupd is stopped; ids from before it are forgotten",
        options.raw, options.state
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::EntryName;

    const CATCH_UP: StatePlan = StatePlan::CatchUp { confirmed: 100, from: 40 };
    const RESTORE: StatePlan = StatePlan::Restore;

    /// An entry with this number, whose section ends before `next`.
    fn entry(number: u64, next: Offset) -> Tail {
        Tail { entry: EntryName { number, crc: 1 }, next, from: None }
    }

    /// An entry with the same number and end, and other content.
    fn other(number: u64, next: Offset) -> Tail {
        Tail { entry: EntryName { number, crc: 2 }, ..entry(number, next) }
    }

    /// Local state whose last entry is confirmed.
    fn head(confirmed: Offset, last: Tail) -> Head {
        Head { confirmed, state_next: 40, tail: Some(last), confirmed_tail: Some(last), ..Head::default() }
    }

    /// Local state that is confirmed up to entry 7, and has another entry behind it.
    fn unconfirmed(confirmed: Offset, last: Tail) -> Head {
        Head { tail: Some(last), ..head(confirmed, entry(7, 100)) }
    }

    /// Local state without a confirmed entry.
    fn without_entry(tail: Option<Tail>) -> Head {
        Head { tail, confirmed_tail: None, ..head(100, entry(0, 0)) }
    }

    fn planned(head: Head, committed: Offset, tail: Option<Tail>) -> StatePlan {
        plan(Some(head), Some(committed), Some(&Checkpoint { tail, ..Checkpoint::default() }))
    }

    #[test]
    fn every_row_of_the_table() {
        let load = |confirmed| StatePlan::Load { confirmed };
        // The head, the committed offset, the entry that its checkpoint names, the plan.
        let rows = [
            ("exactly the committed state", head(100, entry(7, 100)), 100, entry(7, 100), load(100)),
            ("only duplicates since the last entry", head(190, entry(7, 150)), 190, entry(7, 150), load(190)),
            ("the head lacks duplicates", head(150, entry(7, 150)), 190, entry(7, 150), load(190)),
            (
                "a crash before the head was set",
                unconfirmed(100, entry(8, 150)),
                150,
                entry(8, 150),
                load(150),
            ),
            ("it was never committed", unconfirmed(100, entry(8, 150)), 100, entry(7, 100), load(100)),
            // Its owners at 100..130 are not committed.
            ("only its duplicates were", unconfirmed(130, entry(8, 150)), 130, entry(7, 100), load(100)),
            ("the offset was moved before it", unconfirmed(100, entry(8, 150)), 60, entry(7, 100), load(60)),
            ("another one was committed", unconfirmed(100, entry(8, 150)), 150, other(8, 150), CATCH_UP),
            ("it was aborted, later ones not", unconfirmed(100, entry(8, 150)), 200, entry(9, 200), CATCH_UP),
            (
                "an aborted one hides another one",
                unconfirmed(100, entry(8, 150)),
                100,
                other(7, 100),
                RESTORE,
            ),
            ("entries of another instance", head(100, entry(7, 100)), 200, entry(9, 200), CATCH_UP),
            ("another instance forgot ids", head(100, entry(7, 100)), 100, entry(8, 100), CATCH_UP),
            ("a forget record was undone", head(100, entry(8, 100)), 100, entry(7, 100), RESTORE),
            ("a confirmed entry was undone", head(150, entry(8, 150)), 100, entry(7, 100), RESTORE),
            ("its number was used again", head(100, entry(8, 100)), 200, other(8, 200), RESTORE),
            ("another entry at the same end", head(100, entry(7, 100)), 100, other(7, 100), RESTORE),
            ("an equal entry at another end", head(100, entry(7, 100)), 110, entry(7, 110), RESTORE),
            ("the journal was written again", head(100, entry(8, 100)), 200, entry(3, 200), RESTORE),
            ("no entry is confirmed", without_entry(None), 150, entry(1, 150), CATCH_UP),
            (
                "the first one is the committed one",
                without_entry(Some(entry(1, 150))),
                150,
                entry(1, 150),
                load(150),
            ),
        ];
        for (row, head, committed, named, expected) in rows {
            assert_eq!(planned(head, committed, Some(named)), expected, "{row}");
        }
    }

    #[test]
    fn a_checkpoint_without_an_entry_is_that_of_a_store_without_one() {
        assert_eq!(planned(without_entry(None), 190, None), StatePlan::Load { confirmed: 190 });
        // The first entry was never committed, so none of its owners is.
        let first = without_entry(Some(entry(1, 150)));
        assert_eq!(planned(first, 190, None), StatePlan::Load { confirmed: 0 });
        assert_eq!(planned(head(100, entry(7, 100)), 100, None), RESTORE);
    }

    #[test]
    fn without_local_state_or_checkpoint_the_state_topic_is_read() {
        assert_eq!(plan(None, Some(5), None), RESTORE);
        assert_eq!(plan(None, Some(5), Some(&Checkpoint::default())), RESTORE);
        // Another program set the offset, perhaps to its previous value. The end of the restore detects a rewind.
        for committed in [None, Some(100), Some(60)] {
            assert_eq!(plan(Some(without_entry(None)), committed, None), CATCH_UP, "{committed:?}");
        }
    }

    #[test]
    fn local_state_is_unusable_if_the_log_starts_after_it() {
        let log = LogBounds { low: 10, stable: 20, high: 25 };
        let is_usable = |from| usable(Some((from, 7)), &log, Some(7)).is_some();
        assert_eq!([9, 10, 20, 21].map(is_usable), [false, true, true, false]);
        // All records are deleted. Behind the local state there was only the marker of its last transaction, or more.
        let empty = LogBounds { low: 25, stable: 25, high: 25 };
        assert_eq!(usable(Some((24, 7)), &empty, None), Some((25, 7)));
        assert_eq!(usable(Some((23, 7)), &empty, None), None);
        // An entry may have been at 9: local state that has read the whole log continues behind its last marker.
        assert_eq!(usable(Some((9, 7)), &log, None), None);
        // Nothing local was ever committed: what was at offset 0 is not known.
        assert_eq!(usable(Some((0, 0)), &LogBounds { low: 1, stable: 1, high: 1 }, None), None);
    }
}
