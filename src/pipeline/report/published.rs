//! What the status shows about partitions and kinds.

use std::time::Duration;

use crate::dedupe::{Offset, Window, WindowId, Windows};
use crate::metrics::{KindStatus, PartitionState, PartitionStatus, WindowStatus};
use crate::pipeline::kinds::Kinds;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::stall::no_record;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::partition_limit::PartitionLimit;
use crate::ports::Store;

/// What is published about all windows of a worker.
pub(crate) struct Figures {
    pub sealed: SealedFigures,
    /// Memory of the filter over all windows, bytes.
    pub filter_bytes: u64,
    /// For how much longer than their length windows hold ids because of the slowest partition, and what the operator should know of that.
    pub expiry_lag: (Duration, Option<String>),
}

/// What is published about the slices of a worker.
pub(crate) struct SealedFigures {
    /// Their bytes in memory.
    pub bytes: u64,
    /// Share of the look-ups of new identities that have a false positive, by number of the kind, in the partition where it is highest.
    pub rates: Vec<f64>,
}

impl SealedFigures {
    /// Of the windows of these partitions. `is_topic_wide`: all partitions share their slices.
    pub(crate) fn of(
        is_topic_wide: bool,
        kinds: &Kinds,
        partitions: &Partitions,
        store: &impl Store,
    ) -> Self {
        let (mut bytes, mut rates) = (0, Vec::new());
        for kind in kinds.iter() {
            let most = if is_topic_wide { 1 } else { usize::MAX };
            let windows = partitions.kinds().filter(|(_, of, _)| *of == kind.id).take(most);
            let windows: Vec<WindowId> = windows.map(|(partition, ..)| kind.id.window(partition)).collect();
            bytes += windows.iter().map(|window| store.sealed_memory(*window)).sum::<u64>();
            let rate = |window: &WindowId| {
                store.filters(*window).iter().map(|filter| filter.false_positive_rate).sum::<f64>()
            };
            rates.push(windows.iter().map(rate).fold(0.0, f64::max));
        }
        Self { bytes, rates }
    }
}

pub(super) fn kinds<'a>(partitions: &Partitions, names: impl Iterator<Item = &'a str>) -> Vec<KindStatus> {
    let with_name = names.enumerate().filter(|(_, name)| !name.is_empty());
    let statuses = with_name.flat_map(|(number, name)| {
        let windows = partitions.iter().filter_map(move |p| p.state()?.windows.get(number));
        windows.map(|window| {
            let asked_seconds = window.configured().as_secs_f64();
            KindStatus {
                kind: name.to_owned(),
                asked_seconds,
                window_seconds: window.effective_seconds().min(asked_seconds),
                window_ids: window.ids(),
            }
        })
    });
    KindStatus::of_all(&statuses.collect::<Vec<_>>())
}

pub(super) fn status(
    partition: &Partition,
    partition_limit: &PartitionLimit,
    end: Option<Offset>,
    of: impl Fn(&Window) -> WindowStatus,
) -> PartitionStatus {
    let windows = partition.state().map(|state| &state.windows);
    let window = windows.and_then(Windows::unnamed);
    let held = partition.running().is_some_and(|running| running.held);
    let running = partition.running().filter(|_| !held).map(|running| &running.state);
    let waits = partition.running().filter(|_| !held).and_then(|it| {
        let unread = || Some(no_record(it.state.next, it.unread?));
        it.schema.as_ref().map(ToString::to_string).or_else(unread)
    });
    let share = partition.phase().share();
    let shown = window.map(of).unwrap_or_default();
    PartitionStatus {
        partition: partition.id,
        state: match (running, share) {
            _ if waits.is_some() => PartitionState::Waiting,
            (Some(_), _) => PartitionState::Running,
            (_, Some(_)) => PartitionState::Restoring,
            _ => PartitionState::Starting,
        },
        reason: match share {
            Some(share) => {
                let is_local = matches!(partition.phase(), Phase::Loading(_));
                let of = if is_local { "local state" } else { "state topic" };
                Some(format!("{:.0} % of the {of} read", share * 100.0))
            }
            None if !partition_limit.covers(partition.id) => {
                Some("waits until the clean and the state topic have this partition".to_owned())
            }
            None if held => Some("waits until the state of all partitions is complete".to_owned()),
            None if waits.is_some() => waits,
            None => partition.rejections.retry().filter(|_| running.is_none()).map(str::to_owned),
        },
        next: running.map(|state| state.next),
        committed: running.map(|state| state.committed),
        lag_records: running.and_then(|state| Some(end?.saturating_sub(state.next))),
        window_ids: windows.map_or(0, Windows::ids),
        window_seconds: window.map_or(0.0, |window| window.effective_seconds().min(shown.asked_seconds)),
        window: shown,
    }
}
