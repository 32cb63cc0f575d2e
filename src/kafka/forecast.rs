//! What a start would do now, for `dedupd check`: which members the group has, and what a restore would read.

use std::time::Duration;

use super::client_config::Settings;
use super::ends::EndReader;
use super::group_monitor::{GroupMonitor, Member};
use super::state_topic::KafkaStateLog;
use crate::clock::monotonic;
use crate::dedupe::{BlockView, Checkpoint, Offset, PartitionId};
use crate::ports::{Committed, Failure, Leftover, LogTails as _, StateItem, StateLog as _};

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Records of the state topic that are read to estimate the ids of a record, and the time limit.
const SAMPLE: u64 = 500;
/// Offsets at the end of each state partition in which its last block is searched, behind transaction markers.
const LAST: Offset = 20;
const SAMPLE_TIME: Duration = Duration::from_secs(3);

/// What a start would find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// The members of the group.
    pub members: Vec<Member>,
    /// Offsets of raw that are not processed, over all partitions. A partition without a committed offset is omitted.
    pub lag: u64,
    /// Offsets of the state topic that a restore of all partitions without local state would read.
    pub records: u64,
    /// The ids in them, estimated from a sample.
    pub ids: u64,
    /// The committed offset of each partition.
    pub committed: Vec<Committed>,
    /// The last records of each partition of the state topic.
    pub last: Vec<StateItem>,
}

/// Reads what a start with these raw partitions would find, without changing anything.
pub fn forecast(settings: &Settings, partitions: usize) -> Result<Forecast, Failure> {
    let numbers: Vec<PartitionId> = (0..).take(partitions).collect();
    let group = GroupMonitor::new(settings)?;
    let members = group.view(REQUEST)?.members;
    let ends = EndReader::new(settings)?;
    let topic = |name| numbers.iter().map(|number| (name, *number)).collect::<Vec<_>>();
    let state = ends.bounds(&topic(settings.state.as_str()), REQUEST)?;
    // Before the committed offsets, which never lag behind the state topic.
    let last = numbers
        .iter()
        .zip(&state)
        .map(|(number, log)| (*number, log.stable.saturating_sub(LAST).max(log.low)..log.stable));
    let last =
        KafkaStateLog::new(settings)?.tails(&last.collect::<Vec<_>>(), Leftover::Committed, REQUEST)?;
    let answers = group.answers(numbers.iter().copied(), REQUEST)?;
    let answers: Vec<Committed> = answers.into_iter().collect::<Result<_, _>>()?;
    let raw = ends.stable_ends(&topic(settings.raw.as_str()), REQUEST)?;
    let lag = answers.iter().zip(&raw).filter_map(|(answer, end)| Some(end.saturating_sub(answer.offset?)));
    let unread = answers.iter().zip(&state).map(|(answer, bounds)| {
        let from = Checkpoint::parse(&answer.metadata).map_or(bounds.low, |it| it.state_next.max(bounds.low));
        (answer.partition, bounds.stable.saturating_sub(from), bounds.stable)
    });
    let unread: Vec<(PartitionId, u64, Offset)> = unread.collect();
    let records = unread.iter().map(|(_, records, _)| records).sum();
    let largest = unread.iter().max_by_key(|(_, records, _)| *records);
    let ids = match largest {
        Some((partition, most, end)) if *most > 0 => {
            let sampled = SAMPLE.min(*most);
            let ids = ids_between(settings, *partition, (end - sampled, *end))?;
            u64::try_from(u128::from(ids) * u128::from(records) / u128::from(sampled)).unwrap_or(u64::MAX)
        }
        _ => 0,
    };
    Ok(Forecast { members, lag: lag.sum(), records, ids, committed: answers, last })
}

/// The ids of the blocks between two offsets of a partition of the state topic. What cannot be read within the time limit
/// is missing.
fn ids_between(
    settings: &Settings,
    partition: PartitionId,
    (from, end): (Offset, Offset),
) -> Result<u64, Failure> {
    let mut log = KafkaStateLog::new(settings)?;
    log.open(partition, Some(from))?;
    let (began, mut ids) = (monotonic(), 0);
    while began.elapsed() < SAMPLE_TIME {
        for item in log.read(Duration::from_millis(100))? {
            match item {
                StateItem::Block { offset, block, .. } => {
                    ids += BlockView::verified(&block).map_or(0, |view| view.count() as u64);
                    if offset + 1 >= end {
                        return Ok(ids);
                    }
                }
                StateItem::End { .. } | StateItem::Gone { .. } => return Ok(ids),
            }
        }
    }
    Ok(ids)
}
