//! Compares local state with what the group has committed.

use crate::dedupe::{Checkpoint, EntryName, LastEntry, Offset, PartitionId};
use crate::pipeline::error::Fatal;
use crate::pipeline::options::WorkerOptions;
use crate::ports::{Committed, Covered, Head, LogBounds};

/// The name in the head of local state that is that of no entry.
pub(crate) const UNDONE: EntryName = EntryName { number: u64::MAX, crc: 0 };

/// What the group has committed for the partitions of a journal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Located {
    /// The committed offsets.
    pub answers: Vec<Committed>,
    /// The checkpoint that names the last entry; `None` if none names any.
    pub checkpoint: Option<Checkpoint>,
    /// The last committed entry: that one, or a later one that the journal shows. The offsets of the last entry may have been lost, or set by another
    /// program.
    pub last_entry: Option<LastEntry>,
    /// Whether every committed offset has a checkpoint. Another program has set the others: only the journal shows whether they were moved.
    pub are_whole: bool,
}

impl Located {
    /// Of these committed offsets, and the last entry that the journal shows.
    pub fn new(answers: Vec<Committed>, shown: Option<LastEntry>) -> Self {
        let checkpoints: Vec<_> =
            answers.iter().map(|answer| (answer.offset, Checkpoint::parse(&answer.metadata))).collect();
        let are_whole =
            checkpoints.iter().all(|(offset, checkpoint)| offset.is_none() || checkpoint.is_some());
        let horizon_ms = checkpoints.iter().filter_map(|(_, it)| it.as_ref()).map(|it| it.horizon_ms).max();
        let newest = Checkpoint::newest(checkpoints.iter().filter_map(|(_, checkpoint)| checkpoint.as_ref()));
        // The clock never goes back, so the latest one counts.
        let checkpoint =
            newest.map(|newest| Checkpoint { horizon_ms: horizon_ms.unwrap_or(0), ..newest.clone() });
        let last_entry =
            LastEntry::later(shown, checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_entry));
        Self { answers, checkpoint, last_entry, are_whole }
    }

    /// The committed offset of a partition.
    pub fn committed(&self, id: PartitionId) -> Option<Offset> {
        self.answers.iter().find(|answer| answer.partition == id)?.offset
    }

    /// Whether a partition without an offset may have had one. The offsets of a group expire together.
    pub fn has_lost_offsets(&self) -> bool {
        self.checkpoint.as_ref().is_none_or(|checkpoint| checkpoint.others_follow)
    }

    /// Where the last sections of partitions end that their checkpoints name, and the last entry at that time.
    pub fn sections(&self) -> impl Iterator<Item = (PartitionId, Covered, Option<EntryName>)> {
        self.answers.iter().filter_map(|answer| {
            let checkpoint = Checkpoint::parse(&answer.metadata)?;
            let of = Covered { next: checkpoint.section_next?, time_ms: checkpoint.stream_time_ms };
            Some((answer.partition, of, checkpoint.last_entry.map(|last| last.entry)))
        })
    }

    /// Whether the group has an offset of any partition.
    pub fn has_offset(&self) -> bool {
        self.answers.iter().any(|answer| answer.offset.is_some())
    }
}

/// How the windows of a journal get their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatePlan {
    /// The local store has everything up to the last committed entry.
    Load {
        /// Whether the last stored entry is that one; otherwise its owners are removed.
        has_last: bool,
    },
    /// The local store has everything up to its last confirmed entry; the rest is read from the journal, starting at `from`.
    CatchUp {
        /// Offset of the journal at which reading starts.
        from: Offset,
    },
    /// Everything is read from the journal.
    Restore,
}

/// Compares the checkpoints and the local store.
///
/// The newest checkpoint names the last committed entry, and the name covers all of its content. So the store has everything up to
/// it if its last entry has that name, or the one before, when the last one was not committed.
pub(crate) fn plan(head: Option<&Head>, located: &Located) -> StatePlan {
    let Some(head) = head else { return StatePlan::Restore };
    let catch_up = if head.confirmed_entry == Some(UNDONE) {
        StatePlan::Restore
    } else {
        StatePlan::CatchUp { from: head.state_next }
    };
    let named = located.last_entry.map(|last| last.entry);
    // An entry that the store takes for committed was undone, or the journal was truncated and written again.
    let number = |entry: Option<EntryName>| entry.map_or(0, |entry| entry.number);
    let is_other = head.confirmed_entry != named && number(head.confirmed_entry) >= number(named);
    // Where a partition without an offset continues, the head does not show before its entry is confirmed.
    if !located.are_whole || located.has_lost_offsets() {
        // After a power loss it does not show where any partition continues.
        let is_uncovered = head.covered.is_empty() && head.confirmed_entry.is_some();
        return if is_uncovered || is_other && named.is_some() { StatePlan::Restore } else { catch_up };
    }
    // Of a partition without an offset, no checkpoint has the end of the last entry.
    let has_all = located.answers.iter().all(|answer| answer.offset.is_some());
    if head.last_entry == named && (has_all || head.confirmed_entry == named) {
        return StatePlan::Load { has_last: true };
    }
    if head.confirmed_entry == named {
        return StatePlan::Load { has_last: false };
    }
    if is_other { StatePlan::Restore } else { catch_up }
}

/// Whether a journal that no longer holds the offset `from` may have held an entry there or behind it. Local state continues at the marker
/// of its last entry, or behind that marker, where the next entry begins. What a log without open records ends with is a marker, so nothing
/// else was there only if the log ends right behind `from`. Local state that continues at 0 has no last entry.
pub(crate) fn is_behind_the_log(from: Offset, log: &LogBounds) -> bool {
    from < log.low && (from == 0 || from + 1 < log.high)
}

/// The journal offset from which local state can be continued, if it can. Where the journal no longer holds that offset, and held
/// no entry behind it, local state is still complete for a group without an offset.
pub(crate) fn usable(from: Option<Offset>, log: &LogBounds, has_offset: bool) -> Option<Offset> {
    let from = from?;
    if (log.low..=log.stable).contains(&from) {
        return Some(from);
    }
    (!has_offset && from < log.low && !is_behind_the_log(from, log)).then_some(log.low)
}

/// The error when neither the group nor the state topic holds the position of a partition, although the state topic once
/// did.
pub(crate) fn all_expired(options: &WorkerOptions, id: PartitionId, local: Option<Offset>) -> Fatal {
    let local = local.map_or_else(String::new, |next| {
        format!(" The local state ends at offset {next}, and newer records may have been processed.")
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
    use std::collections::BTreeMap;

    use super::*;

    const CATCH_UP: StatePlan = StatePlan::CatchUp { from: 40 };
    const RESTORE: StatePlan = StatePlan::Restore;
    const LOAD: StatePlan = StatePlan::Load { has_last: true };
    const LOAD_CONFIRMED: StatePlan = StatePlan::Load { has_last: false };

    /// An entry with this number.
    #[expect(clippy::unnecessary_wraps, reason = "as a head names it")]
    fn entry(number: u64) -> Option<EntryName> {
        Some(EntryName { number, crc: 1 })
    }

    /// An entry with the same number, and other content.
    #[expect(clippy::unnecessary_wraps, reason = "as a head names it")]
    fn other(number: u64) -> Option<EntryName> {
        Some(EntryName { number, crc: 2 })
    }

    fn head(last_entry: Option<EntryName>, confirmed_entry: Option<EntryName>) -> Head {
        let covered = [(0, Covered { next: 100, time_ms: 1 })].into();
        Head { last_entry, confirmed_entry, state_next: 40, covered, ..Head::default() }
    }

    fn committed(partition: PartitionId, offset: Option<Offset>, named: Option<EntryName>) -> Committed {
        let last_entry = named.map(|entry| LastEntry { entry, from: None });
        Committed { partition, offset, metadata: Checkpoint { last_entry, ..Checkpoint::default() }.render() }
    }

    #[test]
    fn every_row_of_the_table() {
        // The last stored entry, the last confirmed one, the one that the newest checkpoint names, the plan.
        let rows = [
            ("exactly the committed state", entry(7), entry(7), entry(7), LOAD),
            ("a crash before the head was set", entry(8), entry(7), entry(8), LOAD),
            ("it was never committed", entry(8), entry(7), entry(7), LOAD_CONFIRMED),
            ("another one was committed", entry(8), entry(7), other(8), CATCH_UP),
            ("it was aborted, later ones not", entry(8), entry(7), entry(9), CATCH_UP),
            ("an aborted one hides another one", entry(8), entry(7), other(7), RESTORE),
            ("entries of another instance", entry(7), entry(7), entry(9), CATCH_UP),
            ("a confirmed entry was undone", entry(8), entry(8), entry(7), RESTORE),
            ("its number was used again", entry(8), entry(8), other(8), RESTORE),
            ("the journal was written again", entry(8), entry(8), entry(3), RESTORE),
            ("no entry is confirmed", None, None, entry(1), CATCH_UP),
            ("the first one is the committed one", entry(1), None, entry(1), LOAD),
            ("there was no entry yet", None, None, None, LOAD),
            ("the first one was not committed", entry(1), None, None, LOAD_CONFIRMED),
            ("owners were undone before a crash", Some(UNDONE), Some(UNDONE), entry(8), RESTORE),
            ("and the entry that undoes them was committed", entry(9), Some(UNDONE), entry(9), LOAD),
            ("it was not", entry(9), Some(UNDONE), entry(8), RESTORE),
            ("another one was", entry(9), Some(UNDONE), entry(10), RESTORE),
        ];
        for (row, last, confirmed, named, expected) in rows {
            let located = Located::new(vec![committed(0, Some(100), named)], None);
            assert_eq!(plan(Some(&head(last, confirmed)), &located), expected, "{row}");
        }
    }

    #[test]
    fn the_newest_of_several_checkpoints_counts() {
        let located = Located::new(
            vec![
                committed(0, Some(100), entry(6)),
                committed(1, Some(50), entry(7)),
                committed(2, None, None),
            ],
            None,
        );
        assert_eq!(plan(Some(&head(entry(7), entry(7))), &located), LOAD);
        assert_eq!(plan(Some(&head(entry(6), entry(6))), &located), CATCH_UP);
    }

    #[test]
    fn the_latest_clock_counts_and_the_newest_checkpoint_says_whether_offsets_were_lost() {
        let of = |partition, number, horizon_ms, others_follow| {
            let last_entry = Some(LastEntry { entry: EntryName { number, crc: 1 }, from: None });
            let section_next = Some(10 * number).filter(|_| number < 9);
            let checkpoint =
                Checkpoint { last_entry, section_next, horizon_ms, others_follow, ..Checkpoint::default() };
            Committed { partition, offset: Some(99), metadata: checkpoint.render() }
        };
        let located =
            Located::new(vec![of(0, 6, 500, false), of(1, 9, 400, true), of(2, 8, 300, false)], None);
        assert_eq!(located.checkpoint.as_ref().map(|it| it.horizon_ms), Some(500));
        assert_eq!(located.last_entry.map(|last| last.entry.number), Some(9));
        assert!(located.has_lost_offsets() && located.are_whole);
        let sections = located.sections().map(|(id, of, named)| (id, of.next, named));
        assert_eq!(sections.collect::<Vec<_>>(), [(0, 60, entry(6)), (2, 80, entry(8))]);
        assert!(!Located::new(vec![of(0, 6, 500, false)], None).has_lost_offsets());
        assert!(Located::new(vec![committed(0, None, None)], None).checkpoint.is_some());
        assert!(Located::default().has_lost_offsets(), "nothing says that it has not");
    }

    #[test]
    fn without_local_state_or_checkpoint_the_journal_is_read() {
        let of = |offset, metadata: &str| {
            Located::new(vec![Committed { partition: 0, offset, metadata: metadata.to_owned() }], None)
        };
        assert_eq!(plan(None, &Located::new(vec![committed(0, Some(5), None)], None)), RESTORE);
        // Another program set the offset, perhaps to its previous value. The end of the restore detects a rewind.
        for located in [of(None, ""), of(Some(100), ""), of(Some(60), "other")] {
            assert_eq!(plan(Some(&head(entry(7), entry(7))), &located), CATCH_UP, "{located:?}");
        }
        let lacks_one = vec![committed(0, Some(100), entry(8)), committed(1, None, None)];
        let lacks_one = Located::new(lacks_one, None);
        assert_eq!(
            plan(Some(&head(entry(8), entry(7))), &lacks_one),
            CATCH_UP,
            "where partition 1 ends is in entry 8"
        );
        assert_eq!(plan(Some(&head(entry(8), entry(8))), &lacks_one), LOAD);
        let mixed = vec![
            committed(0, Some(100), entry(7)),
            Committed { partition: 1, offset: Some(3), metadata: String::new() },
        ];
        let mixed = Located::new(mixed, None);
        assert_eq!(plan(Some(&head(entry(7), entry(7))), &mixed), CATCH_UP);
        assert_eq!(
            plan(Some(&head(entry(8), entry(8))), &mixed),
            RESTORE,
            "no checkpoint shows which entry 8"
        );
        let uncovered = Head { covered: BTreeMap::new(), ..head(entry(7), entry(7)) };
        assert_eq!(plan(Some(&uncovered), &mixed), RESTORE, "it does not show whether an offset was moved");
        let shown = entry(8).map(|entry| LastEntry { entry, from: None });
        let mixed = Located::new(mixed.answers, shown);
        assert_eq!(plan(Some(&head(entry(8), entry(8))), &mixed), CATCH_UP, "the journal shows it");
    }

    #[test]
    fn local_state_is_unusable_if_the_log_starts_after_it() {
        let log = LogBounds { low: 10, stable: 20, high: 25 };
        let is_usable = |from| usable(Some(from), &log, true).is_some();
        assert_eq!([9, 10, 20, 21].map(is_usable), [false, true, true, false]);
        // All records are deleted. Behind the local state there was only the marker of its last transaction, or more.
        let empty = LogBounds { low: 25, stable: 25, high: 25 };
        assert_eq!(usable(Some(24), &empty, false), Some(25));
        assert_eq!(usable(Some(23), &empty, false), None);
        // An entry may have been at 9: local state that has read the whole log continues behind its last marker.
        assert_eq!(usable(Some(9), &log, false), None);
        // Nothing local was ever committed: what was at offset 0 is not known.
        assert_eq!(usable(Some(0), &LogBounds { low: 1, stable: 1, high: 1 }, false), None);
    }
}
