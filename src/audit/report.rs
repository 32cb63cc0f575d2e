//! The report of an audit, as text and as JSON.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;
use serde_json::{Value, json};

use super::expected::RawCounts;
use super::findings::{Counts, Finding, Kind};
use super::range::Range;
use super::reader::Span;
use crate::dedupe::PartitionId;

/// The result of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionReport {
    /// The partition, the same in raw and clean.
    pub partition: PartitionId,
    /// The offsets audited in raw.
    pub raw_span: Span,
    /// The offsets audited in clean.
    pub clean_span: Span,
    /// Counts of the raw records.
    pub raw: RawCounts,
    /// Records in clean.
    pub clean_records: u64,
    /// Findings by kind.
    pub counts: Counts,
    /// Differences that retention or compaction explains.
    pub gone: u64,
    /// Clean records whose verdict depends on records before the range.
    pub outside: u64,
}

/// The result of an audit.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Results by partition.
    pub partitions: Vec<PartitionReport>,
    /// Records in raw.
    pub raw_records: u64,
    /// Records in clean.
    pub clean_records: u64,
    /// Distinct ids in raw, per partition: an id in two partitions counts twice.
    pub ids: u64,
    /// Raw records that repeat an id within the window.
    pub duplicates_in_raw: u64,
    /// Raw records that repeat an id after the window; clean may hold them.
    pub beyond_window: u64,
    /// Raw records that repeat an id and were forced; clean must hold them.
    pub forced: u64,
    /// Raw records without an id.
    pub without_id: u64,
    /// The audited range.
    pub range: Range,
    /// Raw and clean records of the range that are not evaluated, because their verdict depends on records
    /// before the range.
    pub decided_outside: (u64, u64),
    /// Findings by kind, of all partitions.
    pub counts: Counts,
    /// Lost records that are phantoms in another partition of clean.
    pub moved: u64,
    /// Differences that retention or compaction explains; no findings.
    pub gone: u64,
    /// The first findings of each kind.
    pub samples: Vec<Finding>,
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
    /// Whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts.is_clean()
    }

    /// Adds the result of a partition.
    pub(super) fn add(&mut self, part: PartitionReport) {
        self.raw_records += part.raw.records;
        self.clean_records += part.clean_records;
        self.ids += part.raw.ids;
        self.duplicates_in_raw += part.raw.duplicates;
        self.beyond_window += part.raw.beyond_window;
        self.forced += part.raw.forced;
        self.without_id += part.raw.without_id;
        self.decided_outside.0 += part.raw.decided_outside;
        self.decided_outside.1 += part.outside;
        self.counts += part.counts;
        self.gone += part.gone;
        self.partitions.push(part);
    }

    /// Adds the findings of a partition, up to `limit` of each kind in total.
    pub(super) fn sample(&mut self, findings: &[Finding], limit: usize) {
        for finding in findings {
            if self.samples.iter().filter(|other| other.kind == finding.kind).count() < limit {
                self.samples.push(*finding);
            }
        }
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "clean": self.is_clean(),
            "lost": self.counts.lost,
            "duplicated": self.counts.duplicated,
            "out_of_order": self.counts.out_of_order,
            "altered": self.counts.altered,
            "phantom": self.counts.phantom,
            "moved": self.moved,
            "gone": self.gone,
            "raw_records": self.raw_records,
            "clean_records": self.clean_records,
            "ids": self.ids,
            "duplicates_in_raw": self.duplicates_in_raw,
            "beyond_window": self.beyond_window,
            "forced": self.forced,
            "without_id": self.without_id,
            "decided_outside": { "raw": self.decided_outside.0, "clean": self.decided_outside.1 },
            "from": self.range.from_ms.map(rfc3339),
            "to": self.range.to_ms.map(rfc3339),
            "bytes": self.bytes,
            "spilled_bytes": self.spilled_bytes,
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "notes": self.notes,
            "samples": self.samples.iter().map(finding_json).collect::<Vec<_>>(),
            "partitions": self.partitions.iter().map(partition_json).collect::<Vec<_>>(),
        })
    }
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind.to_string().replace(' ', "_"),
        "partition": finding.partition,
        "raw_offset": finding.raw,
        "clean_offset": finding.clean,
        "fields": finding.fields.names().collect::<Vec<_>>(),
    })
}

fn partition_json(part: &PartitionReport) -> Value {
    json!({
        "partition": part.partition,
        "raw": { "low": part.raw_span.low, "end": part.raw_span.end, "records": part.raw.records },
        "clean": { "low": part.clean_span.low, "end": part.clean_span.end, "records": part.clean_records },
        "lost": part.counts.lost,
        "duplicated": part.counts.duplicated,
        "out_of_order": part.counts.out_of_order,
        "altered": part.counts.altered,
        "phantom": part.counts.phantom,
        "gone": part.gone,
        "ids": part.raw.ids,
        "duplicates_in_raw": part.raw.duplicates,
        "beyond_window": part.raw.beyond_window,
        "forced": part.raw.forced,
        "without_id": part.raw.without_id,
        "decided_outside": { "raw": part.raw.decided_outside, "clean": part.outside },
    })
}

fn rfc3339(ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

impl fmt::Display for Report {
    /// Several lines; the last one is the counts and nothing else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
            let listed = self.samples.iter().filter(|finding| finding.kind == kind);
            listed.clone().try_for_each(|finding| writeln!(f, "{finding}"))?;
            match self.counts.of(kind) - listed.count() as u64 {
                0 => {}
                more => writeln!(f, "{kind}: and {more} more")?,
            }
        }
        if self.moved > 0 {
            writeln!(f, "{} of the lost records are in another partition of clean", self.moved)?;
        }
        if self.gone > 0 {
            writeln!(f, "{} differences are explained by records deleted from the topics", self.gone)?;
        }
        if self.range != Range::default() {
            let text = |ms: Option<i64>, none: &str| ms.map_or_else(|| none.to_owned(), rfc3339);
            let (from, to) =
                (text(self.range.from_ms, "the log start"), text(self.range.to_ms, "the log end"));
            writeln!(f, "range: from {from} to {to}")?;
            let (raw, clean) = self.decided_outside;
            writeln!(
                f,
                "decided outside the range: {raw} raw and {clean} clean records, not evaluated: the verdict \
                 depends on a record with the same id before the range"
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(
            f,
            "raw: {} records, {} ids, {} duplicates, {} repeats beyond the window, {} forced, {} without an id",
            self.raw_records,
            self.ids,
            self.duplicates_in_raw,
            self.beyond_window,
            self.forced,
            self.without_id
        )?;
        writeln!(
            f,
            "clean: {} records; {} of {} partitions read in {:.1} s",
            self.clean_records,
            ByteSize(self.bytes),
            self.partitions.len(),
            self.elapsed.as_secs_f64()
        )?;
        write!(f, "{}", self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Differing;
    use super::*;

    #[test]
    fn the_last_line_is_the_counts_and_nothing_else() {
        let clean = Report::default().to_string();
        assert_eq!(clean.lines().last(), Some("lost 0, duplicated 0, out of order 0, altered 0, phantom 0"));
        let mut found = Report { moved: 1, ..Report::default() };
        found.counts = Counts { lost: 3, duplicated: 1, out_of_order: 4, altered: 1, phantom: 5 };
        let finding = Finding {
            kind: Kind::Lost,
            partition: 2,
            raw: Some(7),
            clean: None,
            fields: Differing::default(),
        };
        found.sample(&[finding; 3], 2);
        let text = found.to_string();
        assert_eq!(text.lines().last(), Some("lost 3, duplicated 1, out of order 4, altered 1, phantom 5"));
        assert!(text.starts_with(
            "lost: partition 2, raw offset 7\nlost: partition 2, raw offset 7\nlost: and 1 more\n"
        ));
        assert!(text.contains("1 of the lost records are in another partition"));
        let json = found.to_json();
        assert_eq!((json["clean"].as_bool(), json["lost"].as_u64()), (Some(false), Some(3)));
        assert_eq!(json["samples"][0]["raw_offset"], 7);
    }
}
