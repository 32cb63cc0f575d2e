//! What a start would do now, for `dedupd check`: which members the group has, and what a restore would read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rdkafka::consumer::Consumer;

use super::client_config::Settings;
use super::ends::EndReader;
use super::group_monitor::{GroupMonitor, Member};
use super::native;
use super::partitions::list_of;
use super::reader::{Ranges, TemporaryReaders};
use super::state_topic::block;
use crate::clock::monotonic;
use crate::dedupe::{Block, BlockError, Coordinates, EntryEnd, ForgetRecord, Offset, PartitionId};
use crate::ports::{Committed, Failure, Isolation, LogBounds, StateItem};

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Offsets at the end of each state partition in which its last block is searched, behind transaction markers.
const LAST: Offset = 20;
/// Offsets of the state topic that are read to estimate its ids, in all partitions, and the time limit.
const SAMPLE: Offset = 12_000;
const SAMPLE_TIME: Duration = Duration::from_secs(5);
/// Places of each partition that are read for the estimate.
const PLACES: Offset = 6;
/// Fewest offsets of a place: with fewer there may be only markers.
const MIN_PLACE: Offset = 8;

type Unusable = (Coordinates, BlockError);

/// What a start would find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// The members of the group.
    pub members: Vec<Member>,
    /// The first member that is not of dedupd, with the remedy.
    pub foreign: Option<String>,
    /// Offsets of raw that are not processed, over all partitions; all of a partition without a committed offset.
    pub lag: u64,
    /// Offsets of the state topic that a restore of all partitions without local state reads.
    pub records: u64,
    /// The ids in them, estimated from a sample.
    pub ids: u64,
    /// The committed offset of each partition.
    pub committed: Vec<Committed>,
    /// The last records of each partition of the state topic. Read before the committed offsets, which never lag behind it.
    pub last: Vec<StateItem>,
    /// The bounds of each partition of raw, and of the state topic, read after the committed offsets.
    pub raw: Vec<LogBounds>,
    pub state: Vec<LogBounds>,
    /// A record of the state topic that cannot be decoded, among those that were read.
    pub unusable: Option<Unusable>,
    /// Whether the clean topic has records although the group has no committed offset and no state.
    pub has_foreign_records: bool,
}

/// Reads what a start with these raw partitions would find, without changing anything. The state topic has the first
/// `state_partitions` of them.
pub fn forecast(
    settings: &Settings,
    partitions: usize,
    state_partitions: usize,
) -> Result<Forecast, Failure> {
    let numbers: Vec<PartitionId> = (0..).take(partitions).collect();
    let group = GroupMonitor::new(settings)?;
    let members = group.view(REQUEST)?.members;
    let ends = EndReader::new(settings)?;
    let logs_of =
        |topic, count| numbers.iter().take(count).map(|number| (topic, *number)).collect::<Vec<_>>();
    let state_logs = logs_of(settings.state.as_str(), state_partitions);
    let state: Ranges = ends
        .bounds(&state_logs, REQUEST)?
        .iter()
        .zip(&numbers)
        .map(|(log, number)| (*number, log.low..log.stable))
        .collect();
    let readers = TemporaryReaders::new(settings);
    let (mut last, topic) = (Vec::new(), settings.state.as_str());
    let ends_of = |range: &Range<Offset>| range.end.saturating_sub(LAST).max(range.start)..range.end;
    let last_ranges = state.iter().map(|(number, range)| (*number, ends_of(range))).collect();
    readers.read(topic, &last_ranges, Isolation::Committed, REQUEST, &mut |message| {
        last.push(block(&message));
        true
    })?;
    // The marker in the state topic can be the first of a transaction. This answer waits for the offsets of such a transaction.
    drop(native::committed(
        ends.stable.client(),
        &list_of(numbers.iter().map(|id| (settings.raw.as_str(), *id))),
        REQUEST,
    ));
    let committed: Vec<Committed> =
        group.answers(numbers.iter().copied(), REQUEST)?.into_iter().collect::<Result<_, _>>()?;
    let raw = ends.bounds(&logs_of(settings.raw.as_str(), partitions), REQUEST)?;
    let is_new = last.is_empty() && committed.iter().all(|answer| answer.offset.is_none());
    // The topic may not exist yet.
    let clean = is_new.then(|| ends.bounds(&logs_of(settings.clean.as_str(), partitions), REQUEST).ok());
    let clean = numbers.iter().copied().zip(clean.flatten().unwrap_or_default());
    let has_foreign_records = !readers.with_records(&settings.clean, clean, REQUEST)?.is_empty();
    let lag = committed.iter().zip(&raw);
    let lag = lag.map(|(answer, log)| log.stable.saturating_sub(answer.offset.unwrap_or(log.low))).sum();
    let (ids, unusable) = ids_in(&readers, &state)?;
    Ok(Forecast {
        foreign: group.foreign_member(&members),
        members,
        lag,
        records: state.values().map(|range| range.end.saturating_sub(range.start)).sum(),
        ids,
        unusable,
        committed,
        last,
        raw,
        state: ends.bounds(&state_logs, REQUEST)?,
        has_foreign_records,
    })
}

/// Estimates the ids of these ranges of the state topic. Also returns a record that cannot be decoded, if one was read.
fn ids_in(readers: &TemporaryReaders, state: &Ranges) -> Result<(u64, Option<Unusable>), Failure> {
    let topic = readers.settings.state.as_str();
    let length = (SAMPLE
        / (PLACES * (state.values().filter(|log| !log.is_empty()).count() as Offset).max(1)))
    .max(MIN_PLACE);
    let places: BTreeMap<_, _> = state.iter().map(|(number, log)| (*number, places(log, length))).collect();
    let rounds = places.values().map(Vec::len).max().unwrap_or(0);
    let limit = SAMPLE_TIME / u32::try_from(rounds).unwrap_or(1).max(1);
    readers.with(topic, Isolation::Committed, |reader| {
        let (mut ids, mut unusable) = (0, None);
        for round in 0..rounds {
            let read = |(number, all): (&PartitionId, &Vec<Place>)| {
                Some((*number, all.get(round).map(|it| it.read.clone())?))
            };
            // The ids of each partition, and where reading ended if that was before the end of the place.
            let (began, mut found) = (monotonic(), BTreeMap::<PartitionId, (u64, Option<Offset>)>::new());
            reader.read(topic, &places.iter().filter_map(read).collect(), REQUEST, &mut |message| {
                let at = message.coordinates();
                let (ids, cut_at) = found.entry(at.partition).or_default();
                match count_of(message.value().unwrap_or_default()) {
                    Ok(count) => *ids += count,
                    Err(error) => unusable = Some((at, error)),
                }
                *cut_at = (began.elapsed() >= limit).then_some(at.offset + 1);
                cut_at.is_none()
            })?;
            for (number, (count, cut_at)) in found {
                let Some(Place { read, stands_for }) = places.get(&number).and_then(|all| all.get(round))
                else {
                    continue;
                };
                // Markers count as offsets, before and behind each record.
                let offsets = cut_at.unwrap_or(read.end).saturating_sub(read.start).max(1);
                ids += u128::from(count) * u128::from(*stands_for) / u128::from(offsets);
            }
        }
        Ok((u64::try_from(ids).unwrap_or(u64::MAX), unusable))
    })
}

/// The ids in a record of the state topic.
fn count_of(bytes: &[u8]) -> Result<u64, BlockError> {
    if ForgetRecord::is_here(bytes) {
        return ForgetRecord::decode(bytes).map(|_| 0);
    }
    if EntryEnd::is_here(bytes) {
        return EntryEnd::decode(bytes).map(|_| 0);
    }
    Block::decode(bytes).map(|block| block.owners.len() as u64)
}

/// A range that is read, and the number of offsets that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    read: Range<Offset>,
    stands_for: Offset,
}

/// The places of a log. Blocks are largest where a backlog was processed, often at the start of the log: the first and the last place
/// stand for themselves only, and each of the others for the part in whose middle it is.
fn places(log: &Range<Offset>, length: Offset) -> Vec<Place> {
    let all = log.end.saturating_sub(log.start);
    let place = |start, length, stands_for| Place { read: start..start + length, stands_for };
    if all <= length * PLACES {
        return vec![place(log.start, all, all)];
    }
    let part = |number| log.start + length + (all - 2 * length) * number / (PLACES - 2);
    let inner = (0..PLACES - 2).map(|number| {
        let (from, stands_for) = (part(number), part(number + 1) - part(number));
        place(from + (stands_for - length) / 2, length, stands_for)
    });
    let ends = [log.start, log.end - length].map(|start| place(start, length, length));
    inner.chain(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_of_a_log_counts_once() {
        for (log, count) in [(0..12_000, 6), (500..500, 1), (7..1_207, 1), (100..1_000_100, 6)] {
            let mut places = places(&log, 500);
            places.sort_by_key(|it| it.read.start);
            let sum: Offset = places.iter().map(|it| it.stands_for).sum();
            assert_eq!((places.len(), sum), (count, log.end - log.start), "{log:?}");
            let ends: Vec<_> = places.iter().flat_map(|it| [it.read.start, it.read.end]).collect();
            assert!(ends.is_sorted() && ends[0] >= log.start && ends.last() <= Some(&log.end), "{ends:?}");
        }
    }
}
