//! Reports as text for people.

use std::fmt;

use bytesize::ByteSize;
use indicatif::HumanCount;

use super::inspect::{FoundOwner, Inspection, LookupResult, PartitionReport};
use super::spelling::utc;
use super::standing::Standing;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = &self.binding;
        let topic = |name: &str, id: &Option<String>| match id {
            Some(id) => format!("{name} (id {id})"),
            None => name.to_owned(),
        };
        let lines = [
            ("database", self.database.clone()),
            ("on disk", ByteSize(self.disk_bytes).display().iec().to_string()),
            ("cluster", bound.cluster_id.clone()),
            ("raw topic", format!("{}, {} partitions", topic(&bound.raw, &bound.raw_id), bound.partitions)),
            ("clean topic", topic(&bound.clean, &bound.clean_id)),
            ("state topic", topic(&bound.state, &bound.state_id)),
            ("group", bound.group.clone()),
            ("hash", bound.hash_text()),
            ("ids", HumanCount(self.ids).to_string()),
        ];
        for (name, value) in lines {
            writeln!(f, "{name:<12}{value}")?;
        }
        if self.partitions.is_empty() {
            return writeln!(f, "\nNo partition has state yet.");
        }
        writeln!(
            f,
            "\n{:>9}  {:>14}  {:<24}  {:>12}  {:>11}  {:>8}  {:>24}  {:>10}",
            "partition", "confirmed", "stream time", "ids", "unconfirmed", "runs", "offsets", "bytes"
        )?;
        for partition in &self.partitions {
            row(f, partition)?;
        }
        self.partitions.iter().filter(|it| !it.slices.is_empty()).try_for_each(|it| slices(f, it))
    }
}

fn row(f: &mut fmt::Formatter<'_>, report: &PartitionReport) -> fmt::Result {
    let offsets = match (report.first, report.next) {
        (Some(first), Some(next)) => format!("{first}..{next}"),
        _ => "none".to_owned(),
    };
    writeln!(
        f,
        "{:>9}  {:>14}  {:<24}  {:>12}  {:>11}  {:>8}  {offsets:>24}  {:>10}{}{}",
        report.partition,
        report.confirmed,
        report.stream_time,
        report.ids,
        report.unconfirmed_ids,
        report.runs,
        ByteSize(report.bytes).display().iec().to_string(),
        of_sealed(report.sealed_ids),
        of_kind(report.kind.as_deref())
    )
}

fn of_sealed(ids: u64) -> String {
    if ids > 0 { format!("  {ids} sealed") } else { String::new() }
}

fn of_kind(kind: Option<&str>) -> String {
    kind.map(|kind| format!("  kind {kind}")).unwrap_or_default()
}

fn slices(f: &mut fmt::Formatter<'_>, report: &PartitionReport) -> fmt::Result {
    let kind = of_kind(report.kind.as_deref());
    writeln!(f, "\nfilters without owners of partition {}{kind}", report.partition)?;
    writeln!(f, "  {:<24}  {:<24}  {:>12}  {:>12}  {:>9}", "from", "until", "ids", "bytes", "rate")?;
    for slice in &report.slices {
        writeln!(
            f,
            "  {:<24}  {:<24}  {:>12}  {:>12}  {:>9.1e}",
            slice.start, slice.end, slice.ids, slice.bytes, slice.false_positive_rate
        )?;
    }
    Ok(())
}

impl fmt::Display for LookupResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "identity {}", self.identity)?;
        self.found.iter().try_for_each(|found| writeln!(f, "{found}"))?;
        if self.found.is_empty() {
            writeln!(f, "not found: the local state does not contain it")?;
        }
        for (partition, standing) in &self.in_filters {
            writeln!(
                f,
                "partition {partition}: in {standing}, which has no owners: a record with it counts as probably seen"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for FoundOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned = &self.owned;
        write!(
            f,
            "partition {} offset {}, arrived between {} and {}: ",
            self.partition,
            owned.offset,
            utc(owned.time_first_ms),
            utc(owned.time_last_ms)
        )?;
        match &self.standing {
            Standing::Exact => {
                f.write_str("in the exact part of the window; another record with it is a duplicate")
            }
            Standing::Bloom { .. } => {
                write!(f, "in {}; another record with it counts as probably seen", self.standing)
            }
            Standing::Expired => f.write_str("older than the window; another record with it is new"),
            Standing::Unconfirmed => f.write_str(
                "at or beyond the confirmed offset; the next start decides by the group's committed offset",
            ),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("the exact part"),
            Self::Bloom { time_ms: (first, last) } => {
                write!(f, "the filter of {} to {}", utc(*first), utc(*last))
            }
            Self::Expired => f.write_str("expired"),
            Self::Unconfirmed => f.write_str("unconfirmed"),
        }
    }
}
