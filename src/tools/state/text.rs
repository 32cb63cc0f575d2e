//! Reports as text for people.

use std::fmt;

use bytesize::ByteSize;
use indicatif::HumanCount;

use super::inspect::{Inspection, WindowReport};
use super::lookup::{FoundOwner, LookupResult, Standing};
use super::spelling::utc;

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
        if self.windows.is_empty() {
            return writeln!(f, "\nNo window has state yet.");
        }
        writeln!(
            f,
            "\n{:>9}  {:>12}  {:>11}  {:<24}  {:>8}  {:>10}",
            "journal", "ids", "unconfirmed", "time", "runs", "bytes"
        )?;
        self.windows.iter().try_for_each(|window| row(f, window))?;
        if !self.partitions.is_empty() {
            writeln!(f, "\n{:>9}  {:>14}  stream time", "partition", "next offset")?;
        }
        for it in &self.partitions {
            writeln!(f, "{:>9}  {:>14}  {}", it.partition, it.next, it.stream_time)?;
        }
        self.windows.iter().filter(|it| !it.filters.is_empty()).try_for_each(|it| filters(f, it))
    }
}

fn row(f: &mut fmt::Formatter<'_>, report: &WindowReport) -> fmt::Result {
    writeln!(
        f,
        "{:>9}  {:>12}  {:>11}  {:<24}  {:>8}  {:>10}{}{}",
        report.journal,
        report.ids,
        report.unconfirmed_ids,
        report.time,
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

fn filters(f: &mut fmt::Formatter<'_>, report: &WindowReport) -> fmt::Result {
    let kind = of_kind(report.kind.as_deref());
    writeln!(f, "\nfilters without owners of journal {}{kind}", report.journal)?;
    writeln!(f, "  {:<24}  {:<24}  {:>12}  {:>12}  {:>9}", "from", "until", "ids", "bytes", "rate")?;
    for filter in &report.filters {
        writeln!(
            f,
            "  {:<24}  {:<24}  {:>12}  {:>12}  {:>9.1e}",
            filter.start, filter.end, filter.ids, filter.bytes, filter.false_positive_rate
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
        for filter in &self.in_filters {
            let (first, last) = filter.time_ms;
            writeln!(
                f,
                "in the filter of {} to {}{}, which has no owners: a record with it counts as probably seen",
                utc(first),
                utc(last),
                of_kind(filter.kind.as_deref())
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for FoundOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = of_kind(self.kind.as_deref());
        let (partition, offset) = (self.partition, self.offset);
        write!(f, "partition {partition} offset {offset}{kind}, arrived at {}: ", utc(self.time_ms))?;
        f.write_str(match self.standing {
            Standing::Exact => "in the window; another record with it is a duplicate",
            Standing::Expired => "older than the window; another record with it is new",
            Standing::Unconfirmed => {
                "not known to be committed; the next start decides by the group's committed offsets"
            }
        })
    }
}
