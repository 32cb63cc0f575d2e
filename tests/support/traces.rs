//! Committed and aborted transactions of a run, from the logs after its end.

use std::collections::BTreeSet;

use super::{Isolation, Pipe, Record};

/// Read from the clean topic and the state topic when no transaction is open.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// When the state records of committed transactions were written, epoch milliseconds, ascending.
    pub committed_ms: Vec<i64>,
    /// Aborted transactions that had written to clean, counted once for each partition.
    pub aborted: usize,
}

impl Traces {
    pub fn of(pipe: &Pipe<'_>) -> Self {
        let state = pipe.kafka.records(&format!("{}.dedupd", pipe.clean), Isolation::Committed);
        let mut committed_ms: Vec<i64> = state.iter().filter_map(|record| record.timestamp_ms).collect();
        committed_ms.sort_unstable();
        let place = |record: &Record| (record.partition, record.offset);
        let all = pipe.kafka.records(&pipe.clean, Isolation::Uncommitted);
        let visible = pipe.kafka.records(&pipe.clean, Isolation::Committed);
        let visible: BTreeSet<_> = visible.iter().map(place).collect();
        let hidden: Vec<_> = all.iter().map(place).filter(|place| !visible.contains(place)).collect();
        Self { committed_ms, aborted: runs(&hidden) }
    }

    /// Number of intervals between consecutive kills in which transactions committed.
    pub fn intervals_with_commits(&self, kills_ms: &[i64]) -> usize {
        let committed = |from: i64, to: i64| {
            let at = self.committed_ms.partition_point(|ms| *ms <= from);
            self.committed_ms.get(at).is_some_and(|ms| *ms < to)
        };
        kills_ms.windows(2).filter(|pair| committed(pair[0], pair[1])).count()
    }
}

/// Number of runs of consecutive offsets. A transaction marker has an offset, so a run never spans two transactions.
fn runs(places: &[(i32, i64)]) -> usize {
    let follows = |pair: &&[(i32, i64)]| pair[0].0 == pair[1].0 && pair[0].1 + 1 == pair[1].1;
    places.len() - places.windows(2).filter(follows).count()
}
