//! The figures of a sample.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::ages::CopyAges;
use super::difference::DifferingCopy;
use super::respelled::Respelled;
use crate::units::seconds_text;

/// The rate is measured over at most this time.
pub(super) const SPAN: Duration = Duration::from_hours(1);

/// The measured figures of a topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopicSample {
    pub partitions: u32,
    /// Records per second in the last hour, or since the first record if that is later. Transaction markers count as
    /// records, so the figure tends to be too high.
    pub events_per_second: f64,
    /// The time over which that is measured, seconds: an hour, or less if the oldest record is younger.
    pub span_seconds: f64,
    /// Whether the last hour has no records: the rate is that of the records that were read.
    pub is_quiet: bool,
    pub read: u64,
    /// Records with an id.
    pub with_id: u64,
    /// Records with the same id as an earlier record of the sample in the same partition. Duplicates that are further apart
    /// are not counted, so the figure tends to be too low.
    pub repeats: u64,
    /// Records with an id that the sample has in another partition, and not before in their own. Partition scope forwards them.
    pub elsewhere: u64,
    /// Ids that the sample has in more than one partition.
    pub moved_ids: u64,
    /// Of so many ids one is followed: 1, or more where there may be too many. Copies are counted among these.
    pub one_in: u64,
    /// Records whose id is followed.
    pub followed: u64,
    /// The sources of what is compared.
    #[serde(skip)]
    pub compare: Vec<String>,
    /// Records with an id, and without what is compared.
    pub without_content: u64,
    /// Copies that were compared with the first record with their id.
    pub compared: u64,
    /// Those of them whose content differs.
    pub differing: u64,
    /// Some of these.
    #[serde(skip)]
    pub examples: Vec<DifferingCopy>,
    /// Ids that differ only by their spelling.
    #[serde(skip)]
    pub respelled: Vec<Respelled>,
    #[serde(skip)]
    pub ages: CopyAges,
    /// The time of the records, seconds. Later copies are not seen.
    pub covered_seconds: f64,
    /// Whether all records of the topic were read.
    pub is_whole: bool,
}

impl TopicSample {
    /// With the rate at which the records that were read were written: a topic without records in the last hour does not stay without.
    pub(super) fn at_its_own_rate(self) -> Self {
        let span_seconds = self.covered_seconds.max(1.0);
        Self { events_per_second: self.read as f64 / span_seconds, span_seconds, is_quiet: true, ..self }
    }

    /// Share of the records with an id that topic scope drops, 0 to 1.
    #[must_use]
    pub fn copies(&self) -> f64 {
        self.share(self.repeats + self.elsewhere)
    }

    /// The share of so many of the records whose ids are followed.
    fn share(&self, records: u64) -> f64 {
        records as f64 / self.followed.max(1) as f64
    }

    /// The warning about copies that differ from the first record with their id, or that what is compared is in no record.
    #[must_use]
    pub fn content_warning(&self) -> Option<String> {
        let Self { compared, differing, examples, with_id, compare, .. } = self;
        if !compare.is_empty() && *with_id > 0 && self.without_content == *with_id {
            return Some(format!(
                "none of the {with_id} records of the sample with an id has {} as a text, a number or a boolean: nothing is compared, and \
                 no conflict is found; correct identity.compare",
                compare.join(" and ")
            ));
        }
        let example = |it: &DifferingCopy| {
            let place =
                it.place.as_ref().map(|place| format!(" (first difference: {place})")).unwrap_or_default();
            format!("record {} differs from {}{place}", it.copy, it.first)
        };
        let examples: Vec<String> = examples.iter().map(example).collect();
        let copies = if *compared == 1 { "copy" } else { "copies" };
        let differ = if *differing == 1 { "differs" } else { "differ" };
        (*differing > 0).then(|| {
            format!(
                "of {compared} {copies} in the sample {differing} {differ} from the first record with their id: the id may not be unique. For \
                 example, {}. Add the field that distinguishes them to identity.from; or, if attempts of one event differ, as by a time of \
                 sending or the spelling of the id, name the fields that do not in identity.compare",
                examples.join(", and ")
            )
        })
    }

    /// Over which time the rate is measured, and why that is not the last hour.
    #[must_use]
    pub fn span(&self) -> String {
        if self.is_quiet {
            let span = seconds_text(self.span_seconds);
            return format!(
                "in the {span} of the records that were read (the last hour has none: if traffic returns at another rate, give --events)"
            );
        }
        if self.span_seconds >= SPAN.as_secs_f64() {
            return "in the last hour".to_owned();
        }
        let span = seconds_text(self.span_seconds);
        format!(
            "in the last {span} (the oldest record is younger than an hour: measure again later, or give --events)"
        )
    }
}

impl fmt::Display for TopicSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the topic")?;
        let (rate, span) = (self.events_per_second, self.span());
        writeln!(f, "  {:<30} {rate:.1} per second {span}, {} partitions", "records", self.partitions)?;
        let (repeats, read) = (self.share(self.repeats) * 100.0, self.read);
        writeln!(
            f,
            "  {:<30} {repeats:.2} % of the newest {read}; duplicates further apart are not counted",
            "duplicates"
        )?;
        let elsewhere = self.share(self.elsewhere) * 100.0;
        writeln!(f, "  {:<30} {elsewhere:.2} % of the newest {read}", "copies in other partitions")?;
        writeln!(f, "  {:<30} {}", "scope", self.advice(None))?;
        let same = if self.compared > 0 {
            "all copies equal the first record with their id, by digests of 4 bytes"
        } else {
            "no copies were compared"
        };
        for respelled in &self.respelled {
            writeln!(f, "  {:<30} {}", "spelling", respelled.warning())?;
        }
        writeln!(f, "  {:<30} {}", "content", self.content_warning().unwrap_or_else(|| same.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_without_records_in_the_last_hour_has_the_rate_of_those_that_were_read() {
        let sample = TopicSample { read: 7_200, covered_seconds: 3_600.0, ..TopicSample::default() };
        let sample = sample.at_its_own_rate();
        assert!((sample.events_per_second - 2.0).abs() < 1e-9, "{sample:?}");
        let span = sample.span();
        assert!(
            span.starts_with("in the 1h of the records that were read (the last hour has none"),
            "{span}"
        );
        // One record has no time of its own.
        let one = TopicSample { read: 1, ..TopicSample::default() }.at_its_own_rate();
        assert!(one.events_per_second.is_finite() && one.events_per_second > 0.0, "{one:?}");
    }
}
