//! How much of a partition's local state is confirmed to be committed.

use crate::dedupe::{Checkpoint, Offset, PartitionId};
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
        /// State topic offset at which reading starts.
        from: Offset,
    },
    /// Everything is read from the state topic.
    Restore,
}

/// Compares the committed offset, its metadata and the local store.
///
/// The last transaction before a crash is read from the state topic, although its blocks are in the store. Two attempts at a
/// transaction can end with equal blocks and differ in those before, for example when the second attempt leaves a rejected
/// record out. When the machine has lost the last writes to the store, it may hold the blocks of the first attempt. Where the
/// state topic, which begins at `state_low`, no longer holds that transaction, the store is all that is left of it.
pub(crate) fn plan(
    head: Option<Head>,
    committed: Option<Offset>,
    checkpoint: Option<&Checkpoint>,
    state_low: Offset,
) -> StatePlan {
    let Some(head) = head else { return StatePlan::Restore };
    let catch_up = StatePlan::CatchUp { confirmed: head.confirmed, from: head.state_next };
    // Without metadata another program has set the offset. Only the state topic shows whether it was moved forward or back.
    let Some((committed, checkpoint)) = committed.zip(checkpoint) else { return catch_up };
    if head.confirmed > committed || head.forgets > checkpoint.forgets {
        // The marker of a later offset was missing, and that transaction left no other trace; or the logs were truncated. Which
        // blocks the store held at the committed offset cannot be compared.
        return StatePlan::Restore;
    }
    if head.confirmed < committed {
        let is_deleted = head.state_next < state_low && checkpoint.forgets == head.forgets;
        let last = head.tail.filter(|_| is_deleted).zip(checkpoint.tail);
        return match last.filter(|(stored, named)| *stored == (named.crc, named.next)) {
            Some(((_, next), _)) => StatePlan::Load { confirmed: next.min(committed) },
            None => catch_up,
        };
    }
    let is_below = |tail: &(u32, Offset)| tail.1 <= committed;
    let stored = head.tail.filter(is_below).or(head.confirmed_tail.filter(is_below));
    let tails = checkpoint.tail.zip(stored);
    if tails.is_some_and(|(tail, stored)| (tail.crc, tail.next) != stored) {
        // The local state has the same length as what was committed, but another last block: the logs were truncated and
        // written again.
        return StatePlan::Restore;
    }
    // Blocks without identities are equal when they cover the same offsets again, after a truncation of raw. The machine may have
    // lost the writes of the later one, so the local state has to reach beyond its place in the state topic.
    let is_earlier = checkpoint.tail.and_then(|tail| tail.from).is_some_and(|from| head.state_next <= from);
    // Forgetting an id leaves the committed offset and the last block unchanged.
    if checkpoint.forgets == head.forgets && !is_earlier {
        StatePlan::Load { confirmed: committed }
    } else {
        catch_up
    }
}

/// Whether a state log that no longer holds the state offset `from` may have held a block there or behind it. Local state continues at the
/// marker of its last block, or behind that marker, where the next block begins. The last entry of a log without open records is a
/// marker, so nothing else was there only if the log ends right behind `from`. Local state that continues at 0 has no last block.
pub(crate) fn is_behind_the_log(from: Offset, log: &LogBounds) -> bool {
    from < log.low && (from == 0 || from + 1 < log.high)
}

/// What of the local state is a base to continue from: (state offset, raw offset). Where the log no longer holds that state
/// offset, and held no block behind it, local state is still complete for a group without an offset.
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
        format!(" The local state ends at offset {confirmed}, but newer records were processed.")
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
    use crate::dedupe::Tail;

    const CATCH_UP: StatePlan = StatePlan::CatchUp { confirmed: 100, from: 40 };

    /// Local state whose last block has this checksum and ends before `next`.
    fn head(confirmed: Offset, crc: u32, next: Offset) -> Head {
        Head { confirmed, state_next: 40, tail: Some((crc, next)), ..Head::default() }
    }

    /// A checkpoint that names such a block as the last one.
    fn named(crc: u32, next: Offset) -> Checkpoint {
        Checkpoint { tail: Some(Tail { crc, next, from: None }), ..Checkpoint::default() }
    }

    #[test]
    fn every_row_of_the_table() {
        let load = |confirmed| StatePlan::Load { confirmed };
        let hidden = Head { confirmed_tail: Some((7, 100)), ..head(100, 8, 150) };
        let forgot = Head { forgets: 1, ..head(100, 7, 100) };
        let elsewhere = |next| Checkpoint { forgets: 1, ..named(7, next) };
        let from = |from| Checkpoint {
            tail: Some(Tail { crc: 7, next: 100, from: Some(from) }),
            ..Checkpoint::default()
        };
        // The head, the committed offset and its checkpoint, the first offset of the state topic, the plan.
        let rows = [
            ("exactly the committed state", head(100, 7, 100), 100, named(7, 100), 0, load(100)),
            ("the last block was never committed", head(100, 8, 150), 100, named(7, 100), 0, load(100)),
            ("only duplicates since the last block", head(190, 7, 150), 190, named(7, 150), 0, load(190)),
            ("beyond the committed offset", head(23, 7, 20), 20, named(7, 20), 0, StatePlan::Restore),
            ("a crash before the update of the head", head(100, 7, 150), 150, named(7, 150), 0, CATCH_UP),
            ("the state topic still holds the block", head(100, 7, 150), 150, named(7, 150), 40, CATCH_UP),
            ("deleted from the state topic", head(100, 7, 150), 150, named(7, 150), 41, load(150)),
            ("deleted there, duplicates followed", head(100, 7, 150), 190, named(7, 150), 41, load(150)),
            ("deleted there, another is committed", head(100, 7, 150), 150, named(9, 150), 41, CATCH_UP),
            ("deleted there, ids were forgotten", head(100, 7, 150), 150, elsewhere(150), 41, CATCH_UP),
            ("another block at the same end", head(100, 7, 100), 100, named(9, 100), 0, StatePlan::Restore),
            ("an aborted block hides the committed one", hidden, 100, named(7, 100), 0, load(100)),
            ("an aborted block hides another one", hidden, 100, named(9, 100), 0, StatePlan::Restore),
            ("it was aborted, others were committed", head(100, 7, 150), 200, named(9, 200), 0, CATCH_UP),
            ("the block is before the local end", head(100, 7, 100), 100, from(39), 0, load(100)),
            // Raw was truncated and written again, and so was this block. The machine has lost the second one.
            ("an equal block at the local end", head(100, 7, 100), 100, from(40), 0, CATCH_UP),
            ("an equal block beyond the local end", head(100, 7, 100), 100, from(44), 0, CATCH_UP),
            ("another instance forgot ids", head(100, 7, 100), 100, elsewhere(100), 0, CATCH_UP),
            ("a forget record was undone", forgot, 100, named(7, 100), 0, StatePlan::Restore),
            ("the forget record was read", forgot, 100, elsewhere(100), 0, load(100)),
        ];
        for (row, head, committed, checkpoint, low, expected) in rows {
            assert_eq!(plan(Some(head), Some(committed), Some(&checkpoint), low), expected, "{row}");
        }
    }

    #[test]
    fn without_local_state_or_checkpoint_the_state_topic_is_read() {
        assert_eq!(plan(None, Some(5), None, 0), StatePlan::Restore);
        // Another program set the offset, perhaps to its previous value. The end of the restore detects a rewind.
        for committed in [None, Some(100), Some(60)] {
            let local = Head { tail: None, ..head(100, 0, 0) };
            assert_eq!(plan(Some(local), committed, None, 0), CATCH_UP, "{committed:?}");
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
        // A block may have been at 9: local state that has read the whole log continues behind its last marker.
        assert_eq!(usable(Some((9, 7)), &log, None), None);
        // Nothing local was ever committed: what was at offset 0 is not known.
        assert_eq!(usable(Some((0, 0)), &LogBounds { low: 1, stable: 1, high: 1 }, None), None);
    }
}
