//! What follows where compaction, retention or another program has removed what would decide.

use super::*;

fn name(decision: &TornDecision) -> &'static str {
    match decision {
        TornDecision::Undecidable(Lack::Record, _) => "lacks the clean record",
        TornDecision::Undecidable(Lack::Records, _) => "lacks records of the entry",
        other => other.name(),
    }
}

#[test]
fn without_a_clean_record_entry_and_offsets_decide_if_they_agree() {
    let lacks = "lacks the clean record";
    for (entry, offsets, expected) in
        [(true, true, "agreed"), (true, false, lacks), (false, true, lacks), (false, false, "agreed")]
    {
        for others in combinations(&[CleanVisibility::Unknowable], 2) {
            let clean = [&[CleanVisibility::Gone], &*others].concat();
            let logs = Logs::with(&Visible { entry, offsets, clean });
            assert_eq!(name(&logs.decide()), expected, "entry {entry}, offsets {offsets}");
        }
        // Another clean log shows it, so it was committed; or hides it, so this one may hide it too.
        let beside = |clean| {
            let clean = vec![clean, CleanVisibility::Gone];
            name(&Logs::with(&Visible { entry, offsets, clean }).decide())
        };
        let is_agreed = entry && offsets;
        assert_eq!(beside(CleanVisibility::Yes), if is_agreed { "agreed" } else { lacks });
        assert_eq!(beside(CleanVisibility::No), if entry || offsets { lacks } else { "agreed" });
    }
}

#[test]
fn an_entry_without_its_first_record_is_not_written_again() {
    let first = |clean| {
        let mut logs = Logs::with(&Visible { entry: false, offsets: true, clean });
        // The first entry has three records, with its end.
        logs.low = 4;
        logs
    };
    let shown = first(vec![CleanVisibility::Yes; 2]);
    assert_eq!(name(&shown.decide()), "lacks records of the entry");
    // Where nothing of it is kept, its records are not needed.
    let hidden = first(vec![CleanVisibility::No; 2]);
    assert_eq!(name(&hidden.decide()), "process records again");
    // Where another program has set the offset, its policy decides.
    let mut elsewhere = first(vec![CleanVisibility::Yes, CleanVisibility::No]);
    elsewhere.positions.insert(0, Position { committed: Some(5), checkpoint: None });
    assert_eq!(name(&elsewhere.decide()), "process records again");
}

#[test]
fn a_named_entry_that_is_not_in_the_journal_is_missing_unless_it_was_deleted() {
    let shown = Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes] };
    let mut logs = Logs::with(&shown);
    // The second entry is at offsets 2 and 3.
    logs.journal.truncate(2);
    assert_eq!(name(&logs.decide()), "a committed entry is missing");
    let mut deleted = logs.clone();
    deleted.low = 3;
    assert_eq!(name(&deleted.decide()), "agreed");
    let checkpoint = logs.positions.get_mut(&0).and_then(|position| position.checkpoint.as_mut()).unwrap();
    checkpoint.last_entry.iter_mut().for_each(|last| last.from = None);
    assert_eq!(name(&logs.decide()), "agreed", "named by local state");
}

#[test]
fn an_aborted_entry_is_not_taken_for_the_deleted_one_with_its_name() {
    // A member that had lost the journal wrote the same entry, and aborted it.
    let attempt = |writer: &str| {
        let shown = Visible { entry: false, offsets: true, clean: vec![CleanVisibility::Unknowable] };
        let mut logs = Logs::with(&shown);
        for (item, _) in logs.journal.iter_mut().skip(2) {
            let StateItem::Record { key: Some(key), .. } = item else { panic!("{item:?}") };
            key.writer = writer.to_owned();
        }
        let last_entry =
            logs.positions.get_mut(&0).and_then(|it| it.checkpoint.as_mut()?.last_entry.as_mut()).unwrap();
        last_entry.from = Some(1);
        logs.low = 2;
        logs
    };
    assert_eq!(name(&attempt("other").decide()), "agreed");
    // The checkpoint was written after it.
    let mut later = attempt("w");
    later.positions.get_mut(&0).unwrap().checkpoint.as_mut().unwrap().state_next = 9;
    assert_eq!(name(&later.decide()), "agreed");
}

#[test]
fn an_aborted_copy_of_a_committed_entry_is_no_evidence() {
    let mut logs = Logs::with(&Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes; 2] });
    let again = vec![section(0, 0, BEFORE, Some(CLEAN_BEFORE)), section(1, 0, BEFORE, Some(CLEAN_BEFORE))];
    let hidden = Visible { entry: false, offsets: false, clean: Vec::new() };
    for number in [1, 2] {
        logs.add(vec![block(0, 0, BEFORE), block(1, 0, BEFORE)], number, again.clone(), &hidden);
        assert_eq!(name(&logs.decide()), "agreed", "a copy of entry {number}");
    }
}

#[test]
fn a_missing_offset_hides_a_transaction_unless_the_group_has_lost_its_offsets() {
    let mut logs = Logs::with(&Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes; 2] });
    let shown = Visible { entry: true, offsets: false, clean: vec![CleanVisibility::Yes] };
    logs.clean.insert((1, 120), CleanVisibility::Yes);
    logs.add(vec![block(1, AFTER, 30)], 3, vec![section(1, AFTER, 30, Some(120))], &shown);
    logs.positions.insert(1, Position { committed: None, checkpoint: None });
    assert_eq!(name(&logs.decide()), "commit the offsets again");
    let newest = logs.positions.get_mut(&0).and_then(|position| position.checkpoint.as_mut());
    newest.unwrap().others_follow = true;
    assert_eq!(name(&logs.decide()), "agreed", "that of partition 1 follows");
}

#[test]
fn an_attempt_that_no_log_shows_changes_nothing() {
    let mut logs = Logs::with(&Visible { entry: false, offsets: false, clean: vec![CleanVisibility::No; 2] });
    assert_eq!(name(&logs.decide()), "agreed");
    // The next transaction uses its number again.
    let shown = Visible { entry: true, offsets: true, clean: vec![CleanVisibility::Yes; 2] };
    logs.transact(2, BEFORE, 30, 130, &shown);
    settle(&logs, 0, &[30, 30], &shown);
}

#[test]
fn an_offset_set_by_another_program_does_not_count_as_hidden() {
    let set = |entry, clean: Vec<CleanVisibility>| {
        let mut logs = Logs::with(&Visible { entry, offsets: true, clean });
        logs.positions.insert(0, Position { committed: Some(5), checkpoint: None });
        logs
    };
    assert_eq!(name(&set(true, vec![CleanVisibility::Yes]).decide()), "agreed");
    assert_eq!(name(&set(true, vec![CleanVisibility::No]).decide()), "process records again");
    assert_eq!(name(&set(false, vec![CleanVisibility::Yes]).decide()), "write the entry again");
}

#[test]
fn a_rewound_partition_keeps_what_was_committed_before_the_transaction() {
    // Its offset is before the first record of the entry, because a later transaction without an entry is not shown.
    let mut logs = Logs::with(&Visible { entry: true, offsets: false, clean: vec![CleanVisibility::No] });
    logs.positions.get_mut(&0).unwrap().committed = Some(BEFORE - 3);
    let TornDecision::Repair(repair) = logs.decide() else { panic!("not repaired") };
    let undone = &repair.end.sections[0];
    assert_eq!((undone.first, undone.next, &*repair.rewound), (BEFORE - 3, BEFORE - 3, &[0][..]));
}
