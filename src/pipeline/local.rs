//! How much of a partition's local state may be believed.

use super::checkpoint::Checkpoint;
use crate::dedupe::Offset;
use crate::ports::Head;

/// How a partition gets its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// The local store has everything below the committed offset.
    Load,
    /// The local store is right below `confirmed`; the rest comes from the state topic, from here on.
    CatchUp {
        /// Local owners from here on are hearsay.
        confirmed: Offset,
        /// Where to begin to read, state topic offset.
        from: Offset,
    },
    /// Everything comes from the state topic.
    Restore,
}

/// Compares what the group, its metadata and the local store say.
///
/// A transaction that was committed right before a crash is read from the state topic, although its blocks are in the store: two
/// attempts at a transaction can end with equal blocks and differ in those before, as when the second one leaves a rejected
/// record out. Where the machine lost the last writes to the store, the first attempt's blocks can be what is left.
pub(super) fn plan(head: Option<Head>, committed: Option<Offset>, checkpoint: Option<&Checkpoint>) -> Plan {
    let Some(head) = head else { return Plan::Restore };
    let catch_up = Plan::CatchUp { confirmed: head.confirmed, from: head.state_next };
    // Somebody else has set the offset: only the state topic knows whether forwards or back.
    let Some((committed, checkpoint)) = committed.zip(checkpoint) else { return catch_up };
    if head.confirmed != committed {
        return catch_up;
    }
    let is_below = |tail: &(u32, Offset)| tail.1 <= committed;
    let stored = head.tail.filter(is_below).or(head.settled.filter(is_below));
    let tails = checkpoint.tail.zip(stored);
    if tails.is_some_and(|(tail, stored)| (tail.crc, tail.next) != stored) {
        // As long as what was committed, but not the same: the logs were truncated and written again.
        return Plan::Restore;
    }
    // Taking an identity back leaves the committed offset and the last block as they are.
    if checkpoint.forgets == head.forgets { Plan::Load } else { catch_up }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::checkpoint::Tail;

    fn head(confirmed: Offset, tail: Option<(u32, Offset)>) -> Head {
        Head { confirmed, state_next: 40, stream_time_ms: 0, tail, ..Head::default() }
    }

    fn checkpoint(crc: u32, next: Offset) -> Checkpoint {
        Checkpoint { tail: Some(Tail { crc, next, from: None }), ..Checkpoint::default() }
    }

    #[test]
    fn local_state_that_is_exactly_the_committed_one_is_loaded() {
        assert_eq!(plan(Some(head(100, Some((7, 100)))), Some(100), Some(&checkpoint(7, 100))), Plan::Load);
        // A block beyond it was written to the store and never committed.
        assert_eq!(plan(Some(head(100, Some((8, 150)))), Some(100), Some(&checkpoint(7, 100))), Plan::Load);
        // Only duplicates since the last block.
        assert_eq!(plan(Some(head(190, Some((7, 150)))), Some(190), Some(&checkpoint(7, 150))), Plan::Load);
    }

    #[test]
    fn the_last_transaction_before_a_crash_is_read_from_the_state_topic() {
        // The crash came between the commit and its note in the store. The last block is the committed one; those before it in the
        // same transaction may be of an earlier attempt.
        let plan = plan(Some(head(100, Some((7, 150)))), Some(150), Some(&checkpoint(7, 150)));
        assert_eq!(plan, Plan::CatchUp { confirmed: 100, from: 40 });
    }

    #[test]
    fn local_state_of_the_same_length_with_another_last_block_is_not_believed() {
        let plan = plan(Some(head(100, Some((7, 100)))), Some(100), Some(&checkpoint(9, 100)));
        assert_eq!(plan, Plan::Restore);
    }

    #[test]
    fn a_block_that_was_never_committed_does_not_hide_which_one_was() {
        let stored = Head { settled: Some((7, 100)), ..head(100, Some((8, 150))) };
        assert_eq!(plan(Some(stored), Some(100), Some(&checkpoint(7, 100))), Plan::Load);
        assert_eq!(plan(Some(stored), Some(100), Some(&checkpoint(9, 100))), Plan::Restore);
    }

    #[test]
    fn a_block_that_was_never_committed_is_not_believed() {
        // Another instance committed other blocks up to 200 while ours, up to 150, came to nothing.
        let plan = plan(Some(head(100, Some((7, 150)))), Some(200), Some(&checkpoint(9, 200)));
        assert_eq!(plan, Plan::CatchUp { confirmed: 100, from: 40 });
    }

    #[test]
    fn identities_taken_back_elsewhere_are_learned_from_the_state_topic() {
        let head = head(100, Some((7, 100)));
        let elsewhere = Checkpoint { forgets: 1, ..checkpoint(7, 100) };
        assert_eq!(plan(Some(head), Some(100), Some(&elsewhere)), Plan::CatchUp { confirmed: 100, from: 40 });
        assert_eq!(plan(Some(Head { forgets: 1, ..head }), Some(100), Some(&elsewhere)), Plan::Load);
    }

    #[test]
    fn nothing_local_or_nothing_committed_asks_the_state_topic() {
        assert_eq!(plan(None, Some(5), None), Plan::Restore);
        assert_eq!(plan(Some(head(100, None)), None, None), Plan::CatchUp { confirmed: 100, from: 40 });
        // An offset without our metadata was set by somebody else, perhaps to where it last was.
        assert_eq!(plan(Some(head(100, None)), Some(100), None), Plan::CatchUp { confirmed: 100, from: 40 });
        // A group that was rewound: the state keeps what was confirmed, and the end of the restore sees it.
        assert_eq!(plan(Some(head(100, None)), Some(60), None), Plan::CatchUp { confirmed: 100, from: 40 });
    }
}
