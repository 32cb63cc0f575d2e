//! The partitions of the status page.

use std::cmp::Reverse;

use super::texts::{escaped, grouped};
use crate::metrics::{PartitionState, PartitionStatus, WorkerStatus};
use crate::units::seconds_text;

/// Most partitions that are listed. Of more, those that are not running come first, then those with the largest lag.
const LISTED: usize = 40;

/// The partitions of this instance by number, or with the most important ones first if there are many.
pub(super) fn partitions(workers: &[WorkerStatus]) -> String {
    let owned = |(number, worker)| {
        let worker: &WorkerStatus = worker;
        worker.partitions.iter().map(move |partition| (number, partition))
    };
    let mut all: Vec<(usize, &PartitionStatus)> = workers.iter().enumerate().flat_map(owned).collect();
    if all.is_empty() {
        return "<p>No partition is assigned to this instance.</p>\n".to_owned();
    }
    all.sort_by_key(|(_, partition)| partition.partition);
    if all.len() > LISTED {
        // An unknown lag counts as the largest.
        all.sort_by_key(|(_, it)| {
            (it.state == PartitionState::Running, Reverse(it.lag_records.unwrap_or(u64::MAX)))
        });
    }
    let (listed, others) = all.split_at(all.len().min(LISTED));
    let rows: String = listed.iter().map(|(worker, partition)| row(*worker, partition)).collect();
    format!(
        "{}<table id=\"partitions\"><tr><th class=\"number\">partition<th>state\
         <th class=\"number\">lag<th>window<th class=\"number\">ids<th class=\"number\">next offset\
         <th class=\"number\">worker</tr>\n{rows}</table>\n{}",
        counts(&all),
        rest(others)
    )
}

/// How many partitions are in each state.
fn counts(all: &[(usize, &PartitionStatus)]) -> String {
    let of = |state: PartitionState| all.iter().filter(|(_, it)| it.state == state).count();
    let states = PartitionState::ALL.iter().map(|state| (state.as_str(), of(*state)));
    let counted: Vec<String> =
        states.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
    let order = if all.len() > LISTED { "; the largest lag first" } else { "" };
    format!("<p>{}{order}</p>\n", counted.join(", "))
}

/// The partitions that are not listed, in one line.
fn rest(others: &[(usize, &PartitionStatus)]) -> String {
    let Some(first) = others.first() else { return String::new() };
    let ids: u64 = others.iter().filter_map(|(_, it)| it.window_ids).sum();
    let state =
        if others.iter().all(|(_, it)| it.state == PartitionState::Running) { "running " } else { "" };
    let lag = first
        .1
        .lag_records
        .map_or_else(|| "an unknown lag".to_owned(), |lag| format!("a lag of at most {}", grouped(lag)));
    format!(
        "<p>{} more {state}partitions with {lag} and {} ids are in \
         <a href=\"/status.json\">this page as JSON</a>.</p>\n",
        others.len(),
        grouped(ids)
    )
}

fn row(worker: usize, partition: &PartitionStatus) -> String {
    let unknown = || "?".to_owned();
    let reason =
        partition.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", escaped(reason)));
    let class = if partition.state == PartitionState::Running { "" } else { " class=\"alert\"" };
    format!(
        "<tr><td class=\"number\" data-label=\"partition\">{}<td{class} data-label=\"\">{}{reason}\
         <td class=\"number\" data-label=\"lag\">{}<td data-label=\"window\">{}<td class=\"number\" data-label=\"ids\">{}\
         <td class=\"number\" data-label=\"next offset\">{}<td class=\"number\" data-label=\"worker\">{worker}</tr>\n",
        partition.partition,
        partition.state.as_str(),
        partition.lag_records.map_or_else(unknown, grouped),
        window(partition),
        partition.window_ids.map_or_else(String::new, grouped),
        partition.next.map_or_else(unknown, grouped),
    )
}

/// The effective length of the window, and the configured one when that is longer.
fn window(partition: &PartitionStatus) -> String {
    let (status, seconds) = (&partition.window, partition.window_seconds);
    let shorter = seconds < status.asked_seconds;
    let exact_is_shorter = status.exact_seconds < seconds && status.limit.is_some();
    let of = if shorter { format!(" of {}", seconds_text(status.asked_seconds)) } else { String::new() };
    let exactly = if exact_is_shorter {
        format!(", {} exactly", seconds_text(status.exact_seconds))
    } else {
        String::new()
    };
    let missed = if status.miss_rate > 0.0 {
        let (share, certain) = (status.miss_rate * 100.0, seconds_text(status.certain_seconds));
        format!(", {share:.2} % overwritten, none in {certain}")
    } else {
        String::new()
    };
    format!("{}{of}{exactly}{missed}", seconds_text(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::WindowStatus;

    fn worker(count: u32, state: impl Fn(u32) -> PartitionState) -> Vec<WorkerStatus> {
        let one = |partition| PartitionStatus {
            partition,
            state: state(partition),
            reason: None,
            next: Some(0),
            committed: Some(0),
            lag_records: Some(u64::from(partition % 100)),
            window_ids: Some(10),
            window_seconds: 60.0,
            window: WindowStatus { asked_seconds: 60.0, ..WindowStatus::default() },
        };
        vec![WorkerStatus { partitions: (0..count).map(one).collect(), ..WorkerStatus::starting() }]
    }

    /// The numbers in the first column.
    fn listed(page: &str) -> Vec<u32> {
        let cells = page.split("<tr><td class=\"number\" data-label=\"partition\">").skip(1);
        cells.map(|cell| cell.split('<').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_few_partitions_are_listed_by_number() {
        let page = partitions(&worker(3, |_| PartitionState::Running));
        assert_eq!(listed(&page), [0, 1, 2]);
        assert!(page.starts_with("<p>3 running</p>"), "{page}");
        assert!(!page.contains("more"), "{page}");
    }

    #[test]
    fn of_many_partitions_those_with_problems_come_first_and_the_rest_is_counted() {
        let state = |at| if at == 250 { PartitionState::Restoring } else { PartitionState::Running };
        let page = partitions(&worker(256, state));
        let numbers = listed(&page);
        assert_eq!(numbers.len(), LISTED);
        assert_eq!(numbers[..3], [250, 99, 199], "{page}");
        assert!(page.starts_with("<p>1 restoring, 255 running; the largest lag first</p>"), "{page}");
        let expected = "216 more running partitions with a lag of at most 80 and 2\u{202f}160 ids";
        assert!(page.contains(expected), "{page}");
    }
}
