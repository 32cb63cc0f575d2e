//! What a report adds to its findings: why an audit proves nothing, what may have caused findings, and what to do.

use super::compare::Outcome;
use super::range::Range;
use super::report::{Report, rfc3339};

impl Report {
    /// Whether there are no findings, and the audit proves something.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.total.counts.is_clean() && !self.has_required_difference() && self.unproven().is_none()
    }

    /// Whether dropped records differ that have to be equal.
    pub(super) fn has_required_difference(&self) -> bool {
        self.require_equal && self.total.dropped.unequal > 0
    }

    /// Why the audit proves nothing, even without findings.
    pub(super) fn unproven(&self) -> Option<String> {
        let raw = &self.total.raw;
        if raw.in_range == 0 {
            return Some(format!("nothing was compared: {}", self.nothing_in_range()));
        }
        let dropped = &self.total.dropped;
        if self.require_equal && dropped.not_compared > 0 && dropped.equal + dropped.unequal == 0 {
            return Some(format!(
                "--require-equal: none of the {} dropped records was compared, so nothing about their content is proven; correct \
                 identity.compare (a text, a number or a boolean that records have), or audit before raw deletes them",
                dropped.not_compared
            ));
        }
        (raw.without_id == raw.in_range).then(|| {
            format!(
                "none of the {} raw records has an id, so nothing about duplicates is proven; correct identity.from",
                raw.in_range
            )
        })
    }

    /// Why raw has no record in the range, and what to do.
    fn nothing_in_range(&self) -> &'static str {
        let Range { from_ms, to_ms } = self.range;
        match (from_ms.is_some(), to_ms.is_some()) {
            _ if self.raw_offsets == 0 => {
                "raw is empty; check topics.raw (--raw), its retention, and that its producers write to it"
            }
            (false, false) => {
                "raw has no committed record; check topics.raw (--raw), and that its producers commit their transactions"
            }
            (true, false) => "raw has no record in the range; give an earlier --from",
            (false, true) => "raw has no record in the range; give a later --to",
            (true, true) => "raw has no record in the range; give an earlier --from or a later --to",
        }
    }

    /// What explains findings that the topics alone do not explain, and what to do or the flag for it.
    pub(super) fn hints(&self) -> Vec<String> {
        let Outcome { counts, lost_at_start, starts_ms, raw, clean_records, .. } = &self.total;
        let mut hints = Vec::new();
        if let (Some(ms), None) = (starts_ms, self.range.from_ms) {
            hints.push(format!(
                "{lost_at_start} of the lost records precede the first record of clean in their partition; if the group started \
                 there (group.start), audit what follows: --from {}",
                rfc3339(*ms)
            ));
        }
        if counts.lost > 0 && *clean_records == 0 {
            let what = if self.range == Range::default() { "is empty" } else { "has no record in the range" };
            hints.push(format!(
                "clean {what}: dedupd has not processed this raw topic; check that dedupd runs, the committed offsets and the \
                 lag of its group (group.id), and topics.clean (--clean)"
            ));
        }
        if *clean_records > raw.in_range && counts.duplicated > raw.duplicates {
            hints.push(format!(
                "clean has more records than raw ({clean_records} and {}), and more duplicates ({} and {}): --raw and --clean \
                 (topics.raw and topics.clean) may be swapped",
                raw.in_range, counts.duplicated, raw.duplicates
            ));
        }
        if counts.duplicated > 0 {
            hints.push(
                "records of an id that was forgotten (dedupd forget) count as duplicated unless --forgotten lists it; after \
                 group.on_rewind = \"reemit\" the records that were written again do: audit what followed with --from; where a limit \
                 (window.max_ids, window.max_memory, state.max_disk) has shortened the window, copies further apart than what is \
                 left do: audit with that length (--window, and the window in /status.json)"
                    .to_owned(),
            );
        }
        if self.total.dropped.unequal > 0 {
            hints.push(
                "dropped records that are not equal: if attempts of one event differ, as by a time of sending, name what does not \
                 in identity.compare; if they are different events, the id is not unique: add what distinguishes them to \
                 identity.from"
                    .to_owned(),
            );
        }
        // The others are in another partition of raw.
        if counts.phantom > self.moved {
            hints.push(
                "phantom records, unless a note explains them: another program writes to clean, or clean was written for \
                 another raw topic; check topics.raw (--raw) and topics.clean (--clean), and which programs may write to clean"
                    .to_owned(),
            );
        }
        hints
    }

    /// The notes, and what the counts add to them.
    pub(super) fn all_notes(&self) -> Vec<String> {
        let raw = &self.total.raw;
        let few_ids = raw.without_id > raw.in_range / 2 && raw.without_id < raw.in_range;
        let note = few_ids.then(|| {
            format!(
                "{} of the {} raw records have no id, so nothing about their duplicates is proven; if they should have one, \
                 correct identity.from",
                raw.without_id, raw.in_range
            )
        });
        self.notes.iter().cloned().chain(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of this many raw records, all of them in the range and with an id.
    fn report(records: u64) -> Report {
        let mut report = Report { raw_offsets: records, ..Report::default() };
        (report.total.raw.records, report.total.raw.in_range, report.total.raw.ids) =
            (records, records, records);
        report.total.clean_records = records;
        report
    }

    fn hints_of(change: impl FnOnce(&mut Report)) -> Vec<String> {
        let mut report = report(9);
        change(&mut report);
        let hints = report.hints();
        assert!(hints.iter().all(|hint| report.to_string().contains(&format!("hint: {hint}\n"))));
        hints
    }

    #[test]
    fn an_audit_that_compared_nothing_is_not_clean_and_says_why() {
        assert!(report(1).is_clean());
        let outside = Report { raw_offsets: 5, ..report(0) };
        let range = |from_ms, to_ms| Report { range: Range { from_ms, to_ms }, ..outside.clone() };
        for (report, why) in [
            (report(0), "raw is empty; check topics.raw (--raw)"),
            (Report { raw_offsets: 0, ..range(Some(1), None) }, "raw is empty; check topics.raw (--raw)"),
            (outside.clone(), "raw has no committed record; check topics.raw"),
            (range(Some(1), None), "raw has no record in the range; give an earlier --from\n"),
            (range(None, Some(1)), "raw has no record in the range; give a later --to\n"),
            (
                range(Some(1), Some(2)),
                "raw has no record in the range; give an earlier --from or a later --to\n",
            ),
        ] {
            let text = report.to_string();
            assert!(text.contains(&format!("nothing was compared: {why}")), "{text}");
            assert!(!report.is_clean(), "{text}");
            let json = report.to_json();
            assert!(
                json["clean"] == false && json["unproven"].as_str().is_some_and(|it| it.contains("raw ")),
                "{json}"
            );
        }
        // The records that were read before the range, for their ids.
        let mut before = range(Some(1), None);
        before.total.raw.records = 5;
        assert!(!before.is_clean(), "{before}");
    }

    #[test]
    fn records_without_an_id_are_told_and_none_with_an_id_is_a_failure() {
        for (without_id, is_clean, words) in [
            (0, true, None),
            (2, true, None),
            (3, true, Some("note: 3 of the 4 raw records have no id")),
            (4, false, Some("none of the 4 raw records has an id")),
        ] {
            let mut report = report(4);
            report.total.raw.without_id = without_id;
            let text = report.to_string();
            assert_eq!(report.is_clean(), is_clean, "{text}");
            assert_eq!(text.contains("id, so nothing"), words.is_some(), "{text}");
            assert!(words.is_none_or(|words| text.contains(words)), "{text}");
        }
    }

    #[test]
    fn records_that_could_not_be_compared_prove_nothing_where_they_have_to_be_equal() {
        let mut report = report(9);
        report.total.dropped.not_compared = 4;
        assert!(report.is_clean());
        report.require_equal = true;
        assert!(
            !report.is_clean() && report.to_string().contains("none of the 4 dropped records"),
            "{report}"
        );
        report.total.dropped.equal = 1;
        assert!(report.is_clean());
    }

    #[test]
    fn dropped_records_that_differ_are_findings_only_if_they_have_to_be_equal() {
        let mut report = report(9);
        report.total.dropped.equal = 4;
        for require_equal in [false, true] {
            report.require_equal = require_equal;
            report.total.dropped.unequal = 0;
            assert!(report.is_clean(), "{report}");
            report.total.dropped.unequal = 3;
            let (text, json) = (report.to_string(), report.to_json());
            assert_eq!(report.is_clean(), !require_equal, "{text}");
            assert_eq!(json["clean"], !require_equal);
            assert_eq!(text.contains("--require-equal: dropped"), require_equal, "{text}");
            assert!(text.contains(": 4 equal, 3 not equal, 0 not compared"), "{text}");
            assert!(text.contains("hint: dropped records that are not equal"), "{text}");
            assert_eq!(json["dropped"], serde_json::json!({ "equal": 4, "unequal": 3, "not_compared": 0 }));
        }
    }

    #[test]
    fn findings_that_a_mistake_explains_have_a_hint() {
        assert!(hints_of(|_| ()).is_empty());
        let lost = hints_of(|it| (it.total.counts.lost, it.total.clean_records) = (9, 0));
        assert!(
            lost.len() == 1 && lost[0].starts_with("clean is empty: dedupd has not processed"),
            "{lost:?}"
        );
        let in_range = hints_of(|it| {
            (it.total.counts.lost, it.total.clean_records, it.range.from_ms) = (9, 0, Some(1));
        });
        assert!(in_range[0].starts_with("clean has no record in the range: "), "{in_range:?}");
        assert!(hints_of(|it| it.total.counts.lost = 9).is_empty(), "clean has records");

        for (in_clean, in_raw) in [(1, 0), (938, 937)] {
            let twice = hints_of(|it| {
                (it.total.counts.duplicated, it.total.raw.duplicates) = (in_clean, in_raw);
                it.total.clean_records = 10;
            });
            let swapped =
                format!("(10 and 9), and more duplicates ({in_clean} and {in_raw}): --raw and --clean");
            assert!(twice.len() == 2 && twice[0].contains(&swapped), "{twice:?}");
        }
        let usual = hints_of(|it| (it.total.counts.duplicated, it.total.raw.duplicates) = (1, 1));
        assert!(usual.len() == 1 && usual[0].contains("--forgotten"), "{usual:?}");

        let foreign = hints_of(|it| (it.total.counts.phantom, it.moved) = (3, 2));
        assert!(foreign.len() == 1 && foreign[0].contains("another program writes to clean"), "{foreign:?}");
        assert!(
            hints_of(|it| (it.total.counts.phantom, it.moved) = (2, 2)).is_empty(),
            "in another partition"
        );
    }
}
