//! Every row of the table, and what a repair leaves behind that is interrupted or torn itself.

use std::collections::BTreeSet;

use super::*;
use crate::dedupe::{Block, HashKind};
use crate::ports::StateItem;

fn block(first: Offset, next: Offset) -> Vec<u8> {
    let identity = |at: Offset| crate::dedupe::Identity(u128::from(at).to_le_bytes());
    let entries = (first..next).map(|at| (at, identity(at))).collect();
    let ms = |at: Offset| 1_000 + i64::try_from(at).unwrap();
    let empty = Block::empty(HashKind::Xxh3, 0.into(), first..next, ms(first));
    Block { time_last_ms: ms(next), entries, ..empty }.encode()
}

/// A block in the state log at `offset`, with the clean end of its transaction and the raw offsets that it covers.
fn item(offset: Offset, clean_end: Option<Offset>, (first, next): (Offset, Offset)) -> StateItem {
    let key = Some(StateKey { clean_end, is_first: true, writer: "w".to_owned(), ..StateKey::default() });
    StateItem::Block { partition: 0, offset, key, block: block(first, next) }
}

/// The offset that a transaction with this block commits, and its checkpoint.
fn committed(from: Offset, (first, next): (Offset, Offset)) -> (Option<Offset>, Option<Checkpoint>) {
    let tail = Some(Tail { crc: Block::checksum(&block(first, next)), next, from: Some(from) });
    (Some(next), Some(Checkpoint { tail, state_next: from, ..Checkpoint::default() }))
}

/// Which logs show the transaction under test: block 20..30 at state offset 4, clean up to 110. The transaction before it
/// is committed: block 10..20 at state offset 2, clean up to 100.
struct Case {
    clean: CleanVisibility,
    block: bool,
    offset: bool,
}

impl Case {
    fn decide(&self) -> TornDecision {
        let log = vec![item(2, Some(100), (10, 20)), item(4, Some(110), (20, 30))];
        let shown = if self.block { BTreeSet::from([2, 4]) } else { BTreeSet::from([2]) };
        let (offset, checkpoint) = if self.offset { committed(4, (20, 30)) } else { committed(2, (10, 20)) };
        look(log, &shown, (offset, checkpoint), &|end| {
            if end == Some(110) { self.clean } else { CleanVisibility::Yes }
        })
    }
}

fn look(
    log: Vec<StateItem>,
    shown: &BTreeSet<Offset>,
    (committed, checkpoint): (Option<Offset>, Option<Checkpoint>),
    clean: &dyn Fn(Option<Offset>) -> CleanVisibility,
) -> TornDecision {
    let tails = Tails::new(log, shown);
    let of = |group: &TransactionBlocks| clean(group.clean_end());
    let hidden: Vec<CleanVisibility> = tails.hidden.iter().map(of).collect();
    let last = tails.shown.last().map_or(CleanVisibility::Unknowable, of);
    let checkpoint = checkpoint.as_ref();
    decide(&Evidence { committed, checkpoint, state_low: 0, tails: &tails, last, hidden: &hidden })
}

fn name(decision: &TornDecision) -> (&'static str, Offset) {
    match decision {
        TornDecision::Agreed => ("agreed", 0),
        TornDecision::Redo(group) => ("redo", group.tail.next),
        TornDecision::Advance(group) => ("advance", group.tail.next),
        TornDecision::Rewind(to, _) => ("rewind", *to),
        TornDecision::RedoForgotten(..) => ("redo forgotten", 0),
        TornDecision::AdvanceForgets(number) => ("advance forgets", *number),
        TornDecision::Missing(_) => ("missing", 0),
        TornDecision::Undecidable(Lack::Record, group) => ("lacks the record", group.tail.next),
        TornDecision::Undecidable(Lack::Blocks, group) => ("lacks blocks", group.tail.next),
    }
}

#[test]
fn every_row_of_the_table() {
    let rows = [
        (CleanVisibility::Yes, true, true, ("agreed", 0)),
        (CleanVisibility::Yes, true, false, ("advance", 30)),
        (CleanVisibility::Yes, false, true, ("redo", 30)),
        (CleanVisibility::Yes, false, false, ("redo", 30)),
        (CleanVisibility::No, true, true, ("rewind", 20)),
        (CleanVisibility::No, true, false, ("rewind", 20)),
        (CleanVisibility::No, false, true, ("rewind", 20)),
        (CleanVisibility::No, false, false, ("agreed", 0)),
        // Compaction has removed the record: block and offset decide if they agree.
        (CleanVisibility::Gone, true, true, ("agreed", 0)),
        (CleanVisibility::Gone, true, false, ("lacks the record", 30)),
        (CleanVisibility::Gone, false, true, ("lacks the record", 30)),
        (CleanVisibility::Gone, false, false, ("agreed", 0)),
        // The clean log has no evidence: block and offset decide for each other.
        (CleanVisibility::Unknowable, true, true, ("agreed", 0)),
        (CleanVisibility::Unknowable, true, false, ("advance", 30)),
        (CleanVisibility::Unknowable, false, true, ("redo", 30)),
        (CleanVisibility::Unknowable, false, false, ("agreed", 0)),
    ];
    for (clean, block, offset, expected) in rows {
        let decision = Case { clean, block, offset }.decide();
        assert_eq!(name(&decision), expected, "clean {clean:?}, block {block}, offset {offset}");
    }
}

#[test]
fn an_aborted_copy_of_blocks_that_are_committed_is_no_evidence() {
    // The block 10..20 was rewritten at state offset 6, by a member that had not read the group's newest offset.
    let log = vec![item(2, Some(100), (10, 20)), item(4, Some(110), (20, 30)), item(6, Some(100), (10, 20))];
    let shown = BTreeSet::from([2, 4]);
    let decision = look(log, &shown, committed(4, (20, 30)), &|_| CleanVisibility::Yes);
    assert_eq!(name(&decision), ("agreed", 0));
}

#[test]
fn of_several_attempts_to_void_the_same_blocks_the_committed_one_is_found() {
    // The first attempt was aborted. Of the second attempt, the offset was committed and the block was not.
    let void = |offset, bytes: Vec<u8>| {
        let key = Some(StateKey { writer: "w".to_owned(), ..StateKey::default() });
        StateItem::Block { partition: 0, offset, key, block: bytes }
    };
    let mut later = Block::decode(&block(20, 20)).unwrap();
    later.time_last_ms += 1;
    let log = vec![item(2, Some(100), (10, 20)), void(4, block(20, 20)), void(6, later.encode())];
    for (at, bytes) in [(4, block(20, 20)), (6, later.encode())] {
        let tail = Some(Tail { crc: Block::checksum(&bytes), next: 20, from: Some(at) });
        let checkpoint = Checkpoint { tail, state_next: at, ..Checkpoint::default() };
        let decision = look(log.clone(), &BTreeSet::from([2]), (Some(20), Some(checkpoint)), &clean_hidden);
        assert_eq!(name(&decision), ("redo", 20), "named at {at}");
    }
}

#[test]
fn an_earlier_aborted_attempt_with_the_same_block_is_not_the_committed_one() {
    // A transaction back to 20 was aborted, one that voids from 30 on was committed, and then the first one again: its offset is
    // committed, and its block is not shown.
    let log = vec![
        item(2, Some(100), (20, 30)),
        item(4, None, (20, 20)),
        item(6, None, (30, 30)),
        item(8, None, (20, 20)),
    ];
    let decision = look(log, &BTreeSet::from([2, 6]), committed(8, (20, 20)), &|_| CleanVisibility::Yes);
    assert_eq!(name(&decision), ("redo", 20));
}

#[test]
fn an_aborted_copy_of_the_named_block_is_no_evidence_when_committed_blocks_continue_it() {
    // The offset of the transaction 20..30 was undone. Meanwhile a member that had lost the partition had written the block
    // 10..20 again, and aborted it.
    let log = vec![item(2, Some(100), (10, 20)), item(4, Some(110), (20, 30)), item(6, Some(120), (10, 20))];
    let clean = |end| if end == Some(120) { CleanVisibility::No } else { CleanVisibility::Yes };
    let decision = look(log, &BTreeSet::from([2, 4]), committed(2, (10, 20)), &clean);
    assert_eq!(name(&decision), ("advance", 30));
    // But after a committed rewind the same block is that of the last transaction.
    let log = vec![item(2, Some(100), (10, 20)), item(4, None, (10, 10)), item(6, Some(120), (10, 20))];
    for from in [2, 6] {
        let decision = look(log.clone(), &BTreeSet::from([2, 4]), committed(from, (10, 20)), &clean);
        assert_eq!(name(&decision), ("rewind", 10), "named from {from}");
    }
}

/// The void block of a rewind to 20, at state offset 6; it has no clean records.
fn with_void() -> Vec<StateItem> {
    vec![item(2, Some(100), (10, 20)), item(4, Some(110), (20, 30)), item(6, None, (20, 20))]
}

fn clean_hidden(end: Option<Offset>) -> CleanVisibility {
    match end {
        Some(110) => CleanVisibility::No,
        Some(_) => CleanVisibility::Yes,
        None => CleanVisibility::Unknowable,
    }
}

#[test]
fn an_interrupted_rewind_is_decided_again() {
    let shown = BTreeSet::from([2, 4]);
    let decision = look(with_void(), &shown, committed(4, (20, 30)), &clean_hidden);
    assert_eq!(name(&decision), ("rewind", 20));
}

#[test]
fn a_rewind_whose_offset_was_undone_is_completed_by_committing_the_offset() {
    for shown in [BTreeSet::from([2, 4, 6]), BTreeSet::from([2, 6])] {
        for before in [committed(4, (20, 30)), committed(2, (10, 20))] {
            let decision = look(with_void(), &shown, before, &clean_hidden);
            assert_eq!(name(&decision), ("advance", 20), "{shown:?}");
        }
    }
}

#[test]
fn a_rewind_whose_block_was_undone_is_completed_by_rewriting_the_block() {
    let decision = look(with_void(), &BTreeSet::from([2]), committed(6, (20, 20)), &clean_hidden);
    assert_eq!(name(&decision), ("redo", 20));
}

#[test]
fn an_interrupted_rewrite_does_not_hide_the_blocks_of_the_first_write() {
    // The transaction has two blocks. The rewrite has only the first of them.
    let log = vec![
        item(2, Some(100), (10, 20)),
        item(4, Some(110), (20, 25)),
        item(5, Some(110), (25, 30)),
        item(7, Some(110), (20, 25)),
    ];
    let shown = BTreeSet::from([2]);
    let TornDecision::Redo(group) = look(log, &shown, committed(2, (10, 20)), &|_| CleanVisibility::Yes)
    else {
        panic!("the blocks are not rewritten");
    };
    assert_eq!((group.first, group.tail.next, group.blocks.len()), (20, 30, 2));
}

#[test]
fn a_repeated_writing_that_was_cut_short_does_not_name_the_transaction() {
    let log = vec![item(4, Some(110), (20, 25)), item(5, Some(110), (25, 30)), item(7, Some(110), (20, 25))];
    let decision = look(log, &BTreeSet::new(), committed(4, (25, 30)), &|_| CleanVisibility::Yes);
    let TornDecision::Redo(group) = decision else { panic!("{}", decision.name()) };
    assert_eq!((group.tail.next, group.tail.crc), (30, Block::checksum(&block(25, 30))));
    assert_eq!(group.blocks.len(), 2);
}

#[test]
fn an_attempt_of_a_member_that_had_lost_the_partition_changes_nothing() {
    let log = vec![item(2, Some(100), (10, 20)), item(4, Some(110), (20, 30)), item(6, Some(120), (20, 28))];
    let shown = BTreeSet::from([2]);
    let clean = |end| if end == Some(120) { CleanVisibility::No } else { CleanVisibility::Yes };
    assert_eq!(name(&look(log.clone(), &shown, committed(4, (20, 30)), &clean)), ("redo", 30));
    let aborted = |end| if end == Some(100) { CleanVisibility::Yes } else { CleanVisibility::No };
    assert_eq!(name(&look(log, &shown, committed(2, (10, 20)), &aborted)), ("agreed", 0));
}

#[test]
fn an_offset_set_by_another_program_is_left_to_the_policy_once_the_logs_agree() {
    let log = || vec![item(2, Some(100), (10, 20))];
    let shown = BTreeSet::from([2]);
    for offset in [5, 15, 25] {
        let set = || (Some(offset), None);
        assert_eq!(look(log(), &shown, set(), &|_| CleanVisibility::Yes), TornDecision::Agreed);
        assert_eq!(name(&look(log(), &shown, set(), &|_| CleanVisibility::No)), ("rewind", 10));
        assert_eq!(name(&look(log(), &BTreeSet::new(), set(), &|_| CleanVisibility::Yes)), ("redo", 20));
        assert_eq!(look(log(), &BTreeSet::new(), set(), &|_| CleanVisibility::No), TornDecision::Agreed);
    }
}

#[test]
fn blocks_after_one_that_retention_deleted_are_newer() {
    let (offset, checkpoint) = committed(2, (10, 20));
    let of = |log: Vec<StateItem>, committed: &[Offset]| {
        let tails = Tails::new(log, &committed.iter().copied().collect());
        let (last, checkpoint) = (CleanVisibility::Yes, checkpoint.as_ref());
        decide(&Evidence { committed: offset, checkpoint, state_low: 3, tails: &tails, last, hidden: &[] })
    };
    assert_eq!(name(&of(vec![item(4, Some(110), (20, 30))], &[4])), ("advance", 30));
    assert_eq!(of(vec![], &[]), TornDecision::Agreed);
    // The same block, written and aborted by a member that had lost the partition.
    let aborted = Tails::new(vec![item(4, Some(110), (10, 20))], &BTreeSet::new());
    let decide = |checkpoint: &Checkpoint| {
        let (last, hidden, checkpoint) =
            (CleanVisibility::Unknowable, &[CleanVisibility::No], Some(checkpoint));
        decide(&Evidence { committed: offset, checkpoint, state_low: 3, tails: &aborted, last, hidden })
    };
    let checkpoint = checkpoint.clone().unwrap();
    let by = |writer: &str| Checkpoint { writer: writer.to_owned(), ..checkpoint.clone() };
    assert_eq!(decide(&by("another")), TornDecision::Agreed);
    // Its own transaction is torn.
    assert_eq!(name(&decide(&by("w"))), ("rewind", 10));
    // A later transaction of that member has committed without a block. The block that it names was written by another member.
    assert_eq!(decide(&Checkpoint { state_next: 6, ..by("w") }), TornDecision::Agreed);
}

/// The log starts with the second block of the transaction 20..30.
fn without_first_block() -> Vec<StateItem> {
    let mut log = vec![item(5, Some(110), (25, 30))];
    if let Some(StateItem::Block { key: Some(key), .. }) = log.first_mut() {
        key.is_first = false;
    }
    log
}

#[test]
fn a_transaction_without_its_first_block_decides_nothing() {
    let unknown = || (None, None);
    let decide = |shown: &[Offset], (offset, checkpoint), clean| {
        let tails = Tails::new(without_first_block(), &shown.iter().copied().collect());
        let (hidden, last) = (vec![clean; tails.hidden.len()], clean);
        let checkpoint: Option<&Checkpoint> = checkpoint;
        decide(&Evidence {
            committed: offset,
            checkpoint,
            state_low: 5,
            tails: &tails,
            last,
            hidden: &hidden,
        })
    };
    let (_, checkpoint) = committed(4, (25, 30));
    for (offset, checkpoint) in [unknown(), (Some(30), checkpoint.as_ref())] {
        assert_eq!(name(&decide(&[5], (offset, checkpoint), CleanVisibility::No)), ("lacks blocks", 30));
    }
    assert_eq!(name(&decide(&[], unknown(), CleanVisibility::Yes)), ("lacks blocks", 30));
    // Complete, or aborted: nothing has to be repaired.
    assert_eq!(decide(&[5], unknown(), CleanVisibility::Yes), TornDecision::Agreed);
    assert_eq!(decide(&[], unknown(), CleanVisibility::No), TornDecision::Agreed);
    // The offset was not committed, so it is where the transaction starts.
    let (offset, checkpoint) = committed(2, (10, 20));
    assert_eq!(name(&decide(&[5], (offset, checkpoint.as_ref()), CleanVisibility::No)), ("rewind", 20));
    // The operator has set the offset, as the error requests.
    assert_eq!(name(&decide(&[5], (Some(20), None), CleanVisibility::No)), ("rewind", 20));
    assert_eq!(name(&decide(&[], (Some(30), None), CleanVisibility::Yes)), ("redo", 30));
}

#[test]
fn a_rewind_of_a_transaction_without_its_first_block_does_not_take_the_time_of_the_others() {
    let cut = Tails::new(without_first_block(), &BTreeSet::from([5]));
    let checkpoint = Checkpoint { stream_time_ms: 7, ..Checkpoint::default() };
    assert_eq!(time_at((20, &cut.shown[0]), Some(20), Some(&checkpoint)), 7);
    assert_eq!(time_at((20, &cut.shown[0]), Some(20), None), 0, "another program has set the offset");
    // The checkpoint is that of the end of the transaction.
    let whole = Tails::new(vec![item(4, Some(110), (20, 30))], &BTreeSet::from([4]));
    assert_eq!(time_at((20, &whole.shown[0]), Some(30), Some(&checkpoint)), 1_020);
}

/// The log starts with the last block of the transaction 10..30. A repair has copied both of its blocks, or only the first.
fn after_a_copy(is_complete: bool) -> Vec<StateItem> {
    let mut log = vec![item(5, Some(110), (20, 30)), item(7, Some(110), (10, 20))];
    if is_complete {
        log.push(item(8, Some(110), (20, 30)));
    }
    for (number, item) in log.iter_mut().enumerate() {
        if let StateItem::Block { key: Some(key), .. } = item {
            *key = StateKey { is_first: false, copied: (number == 2).then_some(2), ..key.clone() };
            if number > 0 {
                key.writer = "repairer".to_owned();
            }
        }
    }
    log
}

#[test]
fn a_complete_copy_replaces_a_transaction_without_its_first_block() {
    let redo = |is_complete| {
        let tails = Tails::new(after_a_copy(is_complete), &BTreeSet::new());
        let (last, hidden) = (CleanVisibility::Unknowable, vec![CleanVisibility::Yes; tails.hidden.len()]);
        let (committed, checkpoint) = (None, None);
        decide(&Evidence { committed, checkpoint, state_low: 5, tails: &tails, last, hidden: &hidden })
    };
    assert_eq!(name(&redo(false)), ("lacks blocks", 30));
    let TornDecision::Redo(group) = redo(true) else { panic!("{:?}", redo(true)) };
    assert_eq!((group.first, group.tail.next, group.blocks.len(), group.is_cut), (10, 30, 2, false));
    let ranges = group.blocks.iter().map(|(_, bytes)| Block::decode(bytes).unwrap().first);
    assert_eq!(ranges.collect::<Vec<_>>(), [10, 20]);
}

#[test]
fn a_missing_block_is_never_accepted() {
    let log = vec![item(2, Some(100), (10, 20))];
    let decision = look(log, &BTreeSet::from([2]), committed(4, (20, 30)), &|_| CleanVisibility::Yes);
    assert_eq!(name(&decision), ("missing", 0));
}
