//! The report of an audit, as text and as JSON.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;
use serde_json::{Value, json};

use super::PartitionId;
use super::compare::Outcome;
use super::differences::UnequalRecord;
use super::dropped::DroppedCounts;
use super::expected::RawCounts;
use super::findings::{Finding, Kind};
use super::range::Range;
use super::reader::Span;

/// The result of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionReport {
    /// The partition, the same in raw and clean. Where several raw topics are compared, its number in [`Report::logs`]; it is then
    /// one of raw or of clean, and the span of the other is empty.
    pub partition: PartitionId,
    /// The offsets audited in raw.
    pub raw_span: Span,
    /// The offsets audited in clean.
    pub clean_span: Span,
    /// The comparison of both.
    pub outcome: Outcome,
}

/// The result of an audit.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Results by partition.
    pub partitions: Vec<PartitionReport>,
    /// Topic and partition of each number, where several raw topics are compared: first those of raw, then those of clean. Empty
    /// otherwise.
    pub logs: Vec<(String, PartitionId)>,
    /// The sums of all partitions, and the first findings of each kind. In partition scope, an id in two partitions counts
    /// twice.
    pub total: Outcome,
    /// The audited range.
    pub range: Range,
    /// Offsets that raw had at the start, in the range or not.
    pub raw_offsets: u64,
    /// Lost records that are phantoms in another partition of clean.
    pub moved: u64,
    /// The first dropped records that differ from the ones that clean holds.
    pub unequal: Vec<UnequalRecord>,
    /// Whether these are findings.
    pub require_equal: bool,
    /// Notes for the reader of the report.
    pub notes: Vec<String>,
    /// Bytes of keys, values and headers that were read.
    pub bytes: u64,
    /// Bytes written to temporary files.
    pub spilled_bytes: u64,
    /// Duration of the audit.
    pub elapsed: Duration,
}

impl Report {
    /// Adds the result of a partition, and its findings up to `samples` of each kind in total.
    pub(super) fn add(&mut self, part: PartitionReport, samples: usize) {
        self.total.add(&part.outcome, samples);
        self.partitions.push(part);
    }

    /// Topic and partition of a number, where several raw topics are compared.
    pub(super) fn log(&self, number: PartitionId) -> Option<&(String, PartitionId)> {
        self.logs.get(usize::try_from(number).ok()?)
    }

    fn finding_json(&self, finding: &Finding) -> Value {
        let json = json!({
            "kind": finding.kind.to_string().replace(' ', "_"),
            "partition": finding.partition,
            "raw_offset": finding.raw,
            "clean_offset": finding.clean,
            "fields": finding.fields.names().collect::<Vec<_>>(),
        });
        let Some((topic, partition)) = self.log(finding.partition) else { return json };
        let is_raw = finding.raw.is_some();
        let clean = self.log(finding.clean_partition).filter(|_| finding.clean.is_some());
        let named = json!({
            "raw_topic": is_raw.then_some(topic),
            "partition": is_raw.then_some(partition),
            "clean_partition": clean.map(|(_, partition)| partition),
        });
        joined([json, named])
    }

    fn partition_json(&self, part: &PartitionReport) -> Value {
        let PartitionReport { partition, raw_span, clean_span, outcome } = part;
        let json = json!({
            "partition": partition,
            "raw": {
                "low": raw_span.low,
                "end": raw_span.end,
                "records": outcome.raw.records,
                "records_in_range": outcome.raw.in_range,
            },
            "clean": { "low": clean_span.low, "end": clean_span.end, "records": outcome.clean_records },
        });
        let named = match self.log(*partition) {
            Some((topic, partition)) => json!({ "topic": topic, "partition": partition }),
            None => Value::Null,
        };
        joined([outcome_json(outcome), json, named])
    }

    fn finding_text(&self, finding: &Finding) -> String {
        let Some(log) = self.log(finding.partition) else { return finding.to_string() };
        let place =
            |(topic, partition): &(String, PartitionId), offset| format!("{topic}/{partition}@{offset}");
        let raw = finding.raw.map(|offset| format!("raw record {}", place(log, offset)));
        let clean = finding.clean.zip(self.log(finding.clean_partition));
        let clean = clean.map(|(offset, log)| format!("clean record {}", place(log, offset)));
        let both: Vec<_> = raw.into_iter().chain(clean).collect();
        format!("{}: {}{}", finding.kind, both.join(", "), finding.fields)
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let own = json!({
            "clean": self.is_clean(),
            "unproven": self.unproven(),
            "moved": self.moved,
            "raw_records": self.total.raw.records,
            "raw_records_in_range": self.total.raw.in_range,
            "clean_records": self.total.clean_records,
            "require_equal": self.require_equal,
            "unequal": self.unequal.iter().map(|it| self.unequal_json(it)).collect::<Vec<_>>(),
            "lost_at_start": self.total.lost_at_start,
            "from": self.range.from_ms.map(rfc3339),
            "to": self.range.to_ms.map(rfc3339),
            "bytes": self.bytes,
            "spilled_bytes": self.spilled_bytes,
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "notes": self.all_notes(),
            "hints": self.hints(),
            "samples": self.total.samples.iter().map(|it| self.finding_json(it)).collect::<Vec<_>>(),
            "partitions": self.partitions.iter().map(|it| self.partition_json(it)).collect::<Vec<_>>(),
        });
        joined([outcome_json(&self.total), own])
    }
}

/// One object with the members of several; the last one of a name counts.
fn joined<const N: usize>(objects: [Value; N]) -> Value {
    objects
        .into_iter()
        .filter_map(|it| if let Value::Object(members) = it { Some(members) } else { None })
        .flatten()
        .collect()
}

/// What is shown of a partition and of the sum of all.
fn outcome_json(outcome: &Outcome) -> Value {
    let DroppedCounts { equal, unequal, not_compared } = outcome.dropped;
    json!({
        "lost": outcome.counts.lost,
        "duplicated": outcome.counts.duplicated,
        "out_of_order": outcome.counts.out_of_order,
        "altered": outcome.counts.altered,
        "phantom": outcome.counts.phantom,
        "late_or_twice": outcome.late_or_twice,
        "gone": outcome.gone,
        "ids": outcome.raw.ids,
        "duplicates_in_raw": outcome.raw.duplicates,
        "dropped": { "equal": equal, "unequal": unequal, "not_compared": not_compared },
        "beyond_window": outcome.raw.beyond_window,
        "forced": outcome.raw.forced,
        "without_id": outcome.raw.without_id,
        "exempt": outcome.raw.exempt,
        "decided_outside": { "raw": outcome.raw.decided_outside, "clean": outcome.outside },
    })
}

pub(super) fn rfc3339(ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

impl Report {
    /// What was read and compared.
    fn read_records(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawCounts { records, in_range, .. } = self.total.raw;
        writeln!(
            f,
            "raw: {} records, {} ids, {} duplicates, {} repeats beyond the window, {} forced, {} without an id",
            in_range,
            self.total.raw.ids,
            self.total.raw.duplicates,
            self.total.raw.beyond_window,
            self.total.raw.forced,
            self.total.raw.without_id
        )?;
        if records > in_range {
            let range = if self.range == Range::default() { "" } else { "are outside the range or " };
            writeln!(
                f,
                "read: {records} raw records; {} of them {range}were written after the start of the audit, and are not counted above",
                records - in_range
            )?;
        }
        let DroppedCounts { equal, unequal, not_compared } = self.total.dropped;
        let dropped = self.total.dropped.sum();
        writeln!(
            f,
            "dropped: {dropped} raw records that repeat an id, compared with the one that clean holds: {equal} equal, {unequal} not \
             equal, {not_compared} not compared"
        )?;
        writeln!(
            f,
            "clean: {} records; {} of {} partitions read in {:.1} s",
            self.total.clean_records,
            ByteSize(self.bytes),
            self.partitions.len(),
            self.elapsed.as_secs_f64()
        )
    }
}

impl fmt::Display for Report {
    /// Several lines; the last one is the counts and nothing else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
            let listed = self.total.samples.iter().filter(|finding| finding.kind == kind);
            listed.clone().try_for_each(|finding| writeln!(f, "{}", self.finding_text(finding)))?;
            match self.total.counts.of(kind) - listed.count() as u64 {
                0 => {}
                more => writeln!(f, "{kind}: and {more} more")?,
            }
        }
        self.unequal.iter().try_for_each(|it| writeln!(f, "{}", self.unequal_text(it)))?;
        match self.total.dropped.unequal - self.unequal.len() as u64 {
            more if more > 0 && !self.unequal.is_empty() => writeln!(f, "not equal: and {more} more")?,
            _ => {}
        }
        if self.moved > 0 {
            writeln!(f, "{} of the lost records are in another partition of clean", self.moved)?;
        }
        if self.total.late_or_twice > 0 {
            writeln!(
                f,
                "late or twice: {} clean records repeat an id within the window by their own timestamps, but arrived more than the \
                 window apart",
                self.total.late_or_twice
            )?;
        }
        if self.total.gone > 0 {
            writeln!(f, "differences explained by records deleted from the topics: {}", self.total.gone)?;
        }
        if self.range != Range::default() {
            let text = |ms: Option<i64>, none: &str| ms.map_or_else(|| none.to_owned(), rfc3339);
            let (from, to) =
                (text(self.range.from_ms, "the log start"), text(self.range.to_ms, "the log end"));
            writeln!(f, "range: from {from} to {to}")?;
            let (raw, clean) = (self.total.raw.decided_outside, self.total.outside);
            writeln!(
                f,
                "decided outside the range: {raw} raw and {clean} clean records, not evaluated: the verdict \
                 depends on a record with the same id outside the range"
            )?;
        }
        if self.has_required_difference() {
            writeln!(f, "--require-equal: dropped records are not equal to the one that clean holds")?;
        }
        self.unproven().iter().try_for_each(|why| writeln!(f, "{why}"))?;
        self.hints().iter().try_for_each(|hint| writeln!(f, "hint: {hint}"))?;
        self.all_notes().iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        if self.total.raw.exempt > 0 {
            writeln!(
                f,
                "exempt: {} raw records are of a kind that is not de-duplicated, or of a forgotten id: compared by their content",
                self.total.raw.exempt
            )?;
        }
        self.read_records(f)?;
        write!(f, "{}", self.total.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Counts, Differing};
    use super::*;

    #[test]
    fn the_last_line_is_the_counts_and_nothing_else() {
        let clean = Report::default().to_string();
        assert_eq!(clean.lines().last(), Some("lost 0, duplicated 0, out of order 0, altered 0, phantom 0"));
        let mut found = Report { moved: 1, ..Report::default() };
        found.total.late_or_twice = 2;
        let counts = Counts { lost: 3, duplicated: 1, out_of_order: 4, altered: 1, phantom: 5 };
        let finding = Finding {
            kind: Kind::Lost,
            partition: 2,
            raw: Some(7),
            clean: None,
            clean_partition: 2,
            fields: Differing::default(),
        };
        found.total.add(&Outcome { counts, samples: vec![finding; 3], ..Outcome::default() }, 2);
        let text = found.to_string();
        assert_eq!(text.lines().last(), Some("lost 3, duplicated 1, out of order 4, altered 1, phantom 5"));
        assert!(text.starts_with(
            "lost: partition 2, raw offset 7\nlost: partition 2, raw offset 7\nlost: and 1 more\n"
        ));
        assert!(text.contains("1 of the lost records are in another partition"));
        assert!(text.contains("late or twice: 2 clean records repeat an id"));
        assert!(text.contains("hint: records of an id that was forgotten"), "{text}");
        (found.total.lost_at_start, found.total.starts_ms) = (2, Some(1_777_636_800_000));
        let text = found.to_string();
        let hint = "2 of the lost records precede the first record of clean";
        assert!(text.contains(hint) && text.contains("--from 2026-05-01T12:00:00.000Z"), "{text}");
        found.range.from_ms = Some(1);
        assert!(!found.to_string().contains(hint), "the range begins there already");
        (found.total.raw.in_range, found.total.raw.records) = (5, 5);
        let text = found.to_string();
        assert!(text.contains("raw: 5 records, ") && !text.contains("read: "), "{text}");
        found.total.raw.records = 8;
        let text = found.to_string();
        assert!(
            text.contains("raw: 5 records, ") && text.contains("read: 8 raw records; 3 of them are outside"),
            "{text}"
        );
        let json = found.to_json();
        assert_eq!((json["clean"].as_bool(), json["lost"].as_u64()), (Some(false), Some(3)));
        assert_eq!(json["samples"][0]["raw_offset"], 7);
    }
}
