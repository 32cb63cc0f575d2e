//! The topics of an audit, and the spans of their partitions that are read.
//!
//! Partitions are compared by number. A partition of raw has the number of its partition in clean. Where several raw topics are
//! compared ([`Scope::Topics`]), each partition of each topic has a number of its own: those of raw first, then those of clean.

use std::collections::BTreeMap;
use std::ops;

use super::error::AuditError;
use super::range;
use super::reader::{OffsetOf, Reader, Span, SpanOf};
use super::{Offset, Options, PartitionId, Scope};

/// A topic with the numbers of its partitions.
pub(super) struct Numbered {
    pub reader: Reader,
    first: PartitionId,
}

impl Numbered {
    /// The number of one of its partitions.
    pub fn number(&self, partition: PartitionId) -> PartitionId {
        self.first + partition
    }

    fn numbers(&self) -> ops::Range<PartitionId> {
        self.first..self.number(self.reader.partitions)
    }

    /// Its part of the spans, by partition.
    pub fn own(&self, spans: impl IntoIterator<Item = (PartitionId, Span)>) -> SpanOf {
        let own = spans.into_iter().filter(|(number, _)| self.numbers().contains(number));
        own.map(|(number, span)| (number - self.first, span)).collect()
    }

    /// The present ends of its partitions that are among these, by number.
    pub fn ends(&self, numbers: impl Iterator<Item = PartitionId>) -> Result<OffsetOf, AuditError> {
        let own = numbers.filter(|number| self.numbers().contains(number)).map(|number| number - self.first);
        let ends = self.reader.ends(own)?;
        Ok(ends.into_iter().map(|(partition, end)| (self.number(partition), end)).collect())
    }

    /// For each partition its number, the whole log, and the part of it from this time on.
    fn spans(&self, from_ms: Option<i64>) -> Result<Vec<(PartitionId, Span, Span)>, AuditError> {
        let all = self.reader.spans(0..self.reader.partitions)?;
        let since = from_ms.map_or_else(|| Ok(all.clone()), |ms| self.reader.since(ms, &all))?;
        let both = all.into_iter().zip(since.into_values());
        Ok(both.map(|((partition, all), since)| (self.number(partition), all, since)).collect())
    }
}

/// The topics of an audit.
pub(super) struct Logs {
    /// One, or in [`Scope::Topics`] at least one.
    pub raw: Vec<Numbered>,
    pub clean: Numbered,
}

impl Logs {
    pub fn new(raw: Vec<Reader>, clean: Reader, scope: Scope) -> Self {
        let mut next = 0;
        let mut numbered = |reader: Reader| {
            let first = next;
            if scope == Scope::Topics {
                next += reader.partitions;
            }
            Numbered { reader, first }
        };
        Self { raw: raw.into_iter().map(&mut numbered).collect(), clean: numbered(clean) }
    }

    /// Topic and partition of each number.
    pub fn names(&self) -> Vec<(String, PartitionId)> {
        let of = |topic: &Numbered| {
            let name = topic.reader.topic().to_owned();
            (0..topic.reader.partitions).map(move |partition| (name.clone(), partition))
        };
        self.raw.iter().chain([&self.clean]).flat_map(of).collect()
    }

    /// Fetches the ends of raw first. Records that clean holds beyond them are also read from raw, but are not due.
    pub fn spans(&self, options: &Options) -> Result<Vec<Spans>, AuditError> {
        let from_ms = options.range.from_ms;
        let context_ms = from_ms.and_then(|from_ms| context_since(options, from_ms));
        let end = self.raw.iter().chain([&self.clean]).map(|topic| topic.numbers().end).max().unwrap_or(0);
        let mut all: BTreeMap<_, _> =
            (0..end).map(|partition| (partition, Spans { partition, ..Spans::default() })).collect();
        for topic in &self.raw {
            for (number, log, since) in topic.spans(context_ms)? {
                let Some(spans) = all.get_mut(&number) else { continue };
                (spans.raw, spans.raw_low) = (since, log.low);
            }
        }
        for (number, log, since) in self.clean.spans(from_ms)? {
            let Some(spans) = all.get_mut(&number) else { continue };
            (spans.clean, spans.clean_low) = (since, log.low);
            spans.clean_trimmed = log.low > 0 && since.low == log.low;
        }
        Ok(all.into_values().collect())
    }

    /// Notes for the reader of the report, about the topics.
    pub fn notes(&self, spans: &[Spans], options: &Options) -> Vec<String> {
        let mut notes = Vec::new();
        if let ([raw], true) = (self.raw.as_slice(), options.scope != Scope::Topics) {
            let [raw, clean] = [&raw.reader, &self.clean.reader].map(|it| (it.topic(), it.partitions));
            if raw.1 != clean.1 {
                notes.push(format!("{} has {} partitions and {} has {}", raw.0, raw.1, clean.0, clean.1));
            }
        }
        if options.allow_gone {
            return notes;
        }
        let mut trimmed = |topic: &Numbered, part: fn(&Spans) -> (Offset, Span), counts_as: &str| {
            let own = spans.iter().filter(|spans| topic.numbers().contains(&spans.partition));
            let count = own.map(part).filter(|(low, span)| *low > 0 && *low == span.low).count();
            if count > 0 {
                notes.push(format!(
                    "{} no longer starts at offset 0 in {count} partitions: the deleted records may cause findings \
                     ({counts_as}); allow them with --allow-gone",
                    topic.reader.topic()
                ));
            }
        };
        // A copy in another partition is explained only by a clean record that may have lost its raw record.
        let of_raw = match options.scope {
            Scope::Partition => "phantom, altered, out of order, duplicated",
            Scope::Topic => "phantom, altered, out of order, duplicated, lost",
            Scope::Topics => "phantom, altered",
        };
        self.raw.iter().for_each(|topic| trimmed(topic, |spans| (spans.raw_low, spans.raw), of_raw));
        trimmed(&self.clean, |spans| (spans.clean_low, spans.clean), "lost");
        notes
    }
}

/// The offsets to read of a partition. Those of a topic that does not have it are empty.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spans {
    /// Its number.
    pub partition: PartitionId,
    /// Records below its end are due in clean.
    pub raw: Span,
    pub clean: Span,
    /// Whether the first records of clean were deleted, and the range includes the log start.
    pub clean_trimmed: bool,
    /// Log start offset of raw, wherever the range begins.
    pub raw_low: Offset,
    /// Log start offset of clean.
    pub clean_low: Offset,
}

impl Spans {
    /// Number of offsets of the whole log of raw.
    pub fn raw_offsets(&self) -> u64 {
        Span { low: self.raw_low, end: self.raw.end }.len()
    }

    /// Number of records of both topics, at most.
    pub fn records(&self) -> u64 {
        self.raw.len() + self.clean.len()
    }
}

/// The most records that are compared together.
pub(super) fn compared_together(scope: Scope, spans: &[Spans]) -> u64 {
    let larger = |raw: u64, clean: u64| raw.max(clean);
    match scope {
        Scope::Topic | Scope::Topics => larger(
            spans.iter().map(|spans| spans.raw.len()).sum(),
            spans.iter().map(|spans| spans.clean.len()).sum(),
        ),
        Scope::Partition => {
            spans.iter().map(|spans| larger(spans.raw.len(), spans.clean.len())).max().unwrap_or(0)
        }
    }
}

/// The time from which raw is read, epoch milliseconds: two windows before the range. An id that was last
/// seen earlier has expired in any case, so every id that can affect the range is read.
fn context_since(options: &Options, from_ms: i64) -> Option<i64> {
    options.longest_window.map(|window| from_ms.saturating_sub(range::whole_ms(window).saturating_mul(2)))
}
