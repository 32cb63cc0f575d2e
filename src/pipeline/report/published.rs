//! What the status shows about partitions and kinds.

use std::time::Duration;

use crate::dedupe::{Offset, Window, WindowId, Windows};
use crate::metrics::{KindStatus, PartitionState, PartitionStatus, WindowStatus};
use crate::pipeline::journal::{Journal, Journals, Phase};
use crate::pipeline::kinds::Kinds;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::stall::no_record;
use crate::pipeline::report::Shown;
use crate::ports::{LogId, Store};

/// What is published about all windows of a worker.
pub(crate) struct Figures {
    pub sealed: SealedFigures,
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
    /// Of the windows of these journals.
    pub(crate) fn of(kinds: &Kinds, journals: &Journals, store: &impl Store) -> Self {
        let (mut bytes, mut rates) = (0, Vec::new());
        for kind in kinds.iter() {
            let windows =
                || journals.windows().filter(|(_, of, _)| *of == kind.id).map(|(id, ..)| kind.id.window(id));
            bytes += windows().map(|window| store.sealed_memory(window)).sum::<u64>();
            let rate = |window: WindowId| {
                store.filters(window).iter().map(|filter| filter.false_positive_rate).sum::<f64>()
            };
            rates.push(windows().map(rate).fold(0.0, f64::max));
        }
        Self { bytes, rates }
    }
}

pub(super) fn kinds<'a>(journals: &Journals, names: impl Iterator<Item = &'a str>) -> Vec<KindStatus> {
    let with_name = names.enumerate().filter(|(_, name)| !name.is_empty());
    let statuses = with_name.flat_map(|(number, name)| {
        let windows = journals.iter().filter_map(move |journal| journal.shown()?.get(number));
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

/// What a journal waits for, if its logs have open records.
fn open_transaction(journal: &Journal) -> Option<String> {
    let Phase::Locating(locating) = journal.phase() else { return None };
    let logs: Vec<LogId> = locating.left_open.as_ref()?.place.iter().map(|(log, _)| *log).collect();
    Some(format!("waits for the end of an open transaction in {}", LogId::listed(&logs)))
}

/// Number of identities in the windows of a journal.
fn ids_of(windows: &Windows) -> u64 {
    windows.iter().map(|(_, window)| window.ids()).sum()
}

pub(super) fn status(
    partition: &Partition,
    shown: &Shown<'_>,
    end: Option<Offset>,
    of: impl Fn(&Window) -> WindowStatus,
) -> PartitionStatus {
    let journal = shown.journals.get(partition.journal);
    let windows = journal.and_then(Journal::shown);
    let window = windows.and_then(Windows::unnamed);
    let running = Some(partition).filter(|partition| partition.is_started);
    let waits = running.and_then(|it| {
        let unread = || Some(no_record(it.next, it.unread?));
        it.schema.as_ref().map(ToString::to_string).or_else(unread)
    });
    let share = journal.and_then(|journal| journal.phase().share());
    let of_window = window.map(of).unwrap_or_default();
    let has_others = shown.partitions.of(partition.journal).nth(1).is_some();
    // The windows of a journal are shown once.
    let is_first = journal.is_some_and(|journal| {
        shown.partitions.of(journal.id).next().is_some_and(|first| first.id == partition.id)
    });
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
                let is_local = journal.is_some_and(|it| matches!(it.phase(), Phase::Loading(_)));
                let of = if is_local { "local state" } else { "state topic" };
                Some(format!("{:.0} % of the {of} read", share * 100.0))
            }
            None if !shown.options.partition_counts.covers(partition.id) => {
                Some("waits until the clean and the state topic have this partition".to_owned())
            }
            None if waits.is_some() => waits,
            None if running.is_some() => None,
            None => partition
                .rejections
                .retry()
                .map(str::to_owned)
                .or_else(|| open_transaction(journal?))
                .or_else(|| {
                    has_others.then(|| "waits until the state of all partitions is complete".to_owned())
                }),
        },
        next: running.map(|it| it.next),
        committed: running.map(|it| it.committed),
        lag_records: running.and_then(|it| Some(end?.saturating_sub(it.next))),
        window_ids: journal.filter(|_| is_first).and_then(Journal::shown).map(ids_of),
        window_seconds: window.map_or(0.0, |window| window.effective_seconds().min(of_window.asked_seconds)),
        window: of_window,
    }
}
