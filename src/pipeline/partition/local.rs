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
    if head.confirmed > committed {
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

/// Whether a state log whose old records were deleted had other records behind local state that continues at `from`: more
/// than the marker of the transaction that wrote its last block. Local state that continues at 0 has no last block.
pub(crate) fn is_behind_the_log(from: Offset, log: &LogBounds) -> bool {
    from + Offset::from(from > 0) < log.low
}

/// What of the local state is a base to continue from: (state offset, raw offset). Where the log no longer holds that state
/// offset, and held nothing else behind it, local state is still complete for a group without an offset.
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

    fn head(confirmed: Offset, tail: Option<(u32, Offset)>) -> Head {
        Head { confirmed, state_next: 40, stream_time_ms: 0, tail, ..Head::default() }
    }

    /// The plan while the state topic still holds everything.
    fn plan(head: Option<Head>, committed: Option<Offset>, checkpoint: Option<&Checkpoint>) -> StatePlan {
        super::plan(head, committed, checkpoint, 0)
    }

    fn checkpoint(crc: u32, next: Offset) -> Checkpoint {
        Checkpoint { tail: Some(Tail { crc, next, from: None }), ..Checkpoint::default() }
    }

    #[test]
    fn local_state_that_is_exactly_the_committed_one_is_loaded() {
        assert_eq!(
            plan(Some(head(100, Some((7, 100)))), Some(100), Some(&checkpoint(7, 100))),
            StatePlan::Load { confirmed: 100 }
        );
        // A block beyond it was written to the store and never committed.
        assert_eq!(
            plan(Some(head(100, Some((8, 150)))), Some(100), Some(&checkpoint(7, 100))),
            StatePlan::Load { confirmed: 100 }
        );
        // Only duplicates since the last block.
        assert_eq!(
            plan(Some(head(190, Some((7, 150)))), Some(190), Some(&checkpoint(7, 150))),
            StatePlan::Load { confirmed: 190 }
        );
    }

    #[test]
    fn local_state_beyond_the_committed_offset_is_not_used() {
        assert_eq!(
            plan(Some(head(23, Some((7, 20)))), Some(20), Some(&checkpoint(7, 20))),
            StatePlan::Restore
        );
    }

    #[test]
    fn the_last_transaction_before_a_crash_is_read_from_the_state_topic() {
        // The crash came after the commit and before the update of the local head. The last block is the committed one; the
        // blocks before it in the same transaction may be those of an earlier attempt.
        let plan = plan(Some(head(100, Some((7, 150)))), Some(150), Some(&checkpoint(7, 150)));
        assert_eq!(plan, StatePlan::CatchUp { confirmed: 100, from: 40 });
    }

    #[test]
    fn the_last_transaction_is_loaded_where_the_state_topic_no_longer_holds_it() {
        let local = head(100, Some((7, 150)));
        let deleted = |head, committed, checkpoint: &Checkpoint| {
            super::plan(Some(head), Some(committed), Some(checkpoint), 41)
        };
        assert_eq!(deleted(local, 150, &checkpoint(7, 150)), StatePlan::Load { confirmed: 150 });
        // Only duplicates followed the block.
        assert_eq!(deleted(local, 190, &checkpoint(7, 150)), StatePlan::Load { confirmed: 150 });
        // The last stored block is another one.
        let catch_up = StatePlan::CatchUp { confirmed: 100, from: 40 };
        assert_eq!(deleted(local, 150, &checkpoint(9, 150)), catch_up);
        // Another instance has forgotten ids.
        assert_eq!(deleted(local, 150, &Checkpoint { forgets: 1, ..checkpoint(7, 150) }), catch_up);
        // The state topic still holds it.
        assert_eq!(super::plan(Some(local), Some(150), Some(&checkpoint(7, 150)), 40), catch_up);
    }

    #[test]
    fn local_state_of_the_same_length_with_another_last_block_is_not_used() {
        let plan = plan(Some(head(100, Some((7, 100)))), Some(100), Some(&checkpoint(9, 100)));
        assert_eq!(plan, StatePlan::Restore);
    }

    #[test]
    fn an_uncommitted_block_does_not_hide_the_last_committed_one() {
        let stored = Head { confirmed_tail: Some((7, 100)), ..head(100, Some((8, 150))) };
        assert_eq!(
            plan(Some(stored), Some(100), Some(&checkpoint(7, 100))),
            StatePlan::Load { confirmed: 100 }
        );
        assert_eq!(plan(Some(stored), Some(100), Some(&checkpoint(9, 100))), StatePlan::Restore);
    }

    #[test]
    fn a_block_that_was_never_committed_is_not_used() {
        // Another instance committed other blocks up to 200. Our block, up to 150, was aborted.
        let plan = plan(Some(head(100, Some((7, 150)))), Some(200), Some(&checkpoint(9, 200)));
        assert_eq!(plan, StatePlan::CatchUp { confirmed: 100, from: 40 });
    }

    #[test]
    fn a_block_that_equals_an_earlier_one_is_recognised_by_its_place_in_the_state_topic() {
        let named = |from| {
            let tail = Some(Tail { crc: 7, next: 100, from: Some(from) });
            plan(Some(head(100, Some((7, 100)))), Some(100), Some(&Checkpoint { tail, ..checkpoint(7, 100) }))
        };
        assert_eq!(named(39), StatePlan::Load { confirmed: 100 });
        // Raw was truncated and written again, and so was this block. The machine has lost the second one.
        assert_eq!([named(40), named(44)], [StatePlan::CatchUp { confirmed: 100, from: 40 }; 2]);
    }

    #[test]
    fn ids_forgotten_by_another_instance_are_read_from_the_state_topic() {
        let head = head(100, Some((7, 100)));
        let elsewhere = Checkpoint { forgets: 1, ..checkpoint(7, 100) };
        assert_eq!(
            plan(Some(head), Some(100), Some(&elsewhere)),
            StatePlan::CatchUp { confirmed: 100, from: 40 }
        );
        assert_eq!(
            plan(Some(Head { forgets: 1, ..head }), Some(100), Some(&elsewhere)),
            StatePlan::Load { confirmed: 100 }
        );
    }

    #[test]
    fn without_local_state_or_committed_offset_the_state_topic_is_read() {
        assert_eq!(plan(None, Some(5), None), StatePlan::Restore);
        assert_eq!(plan(Some(head(100, None)), None, None), StatePlan::CatchUp { confirmed: 100, from: 40 });
        // An offset without our metadata was set by another program, perhaps to its previous value.
        assert_eq!(
            plan(Some(head(100, None)), Some(100), None),
            StatePlan::CatchUp { confirmed: 100, from: 40 }
        );
        // A group that was rewound: the state keeps the confirmed owners, and the end of the restore detects the rewind.
        assert_eq!(
            plan(Some(head(100, None)), Some(60), None),
            StatePlan::CatchUp { confirmed: 100, from: 40 }
        );
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
        // Nothing local was ever committed: what was at offset 0 is not known.
        assert_eq!(usable(Some((0, 0)), &LogBounds { low: 1, stable: 1, high: 1 }, None), None);
    }
}
