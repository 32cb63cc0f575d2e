//! Stream time: a partition's own clock, and when a record counts as written.

use std::ops::RangeInclusive;

use crate::dedupe::format::Owner;

/// How far a record's timestamp may be ahead of the clock before it is limited, in ms: five minutes.
pub const MOST_AHEAD_MS: i64 = 5 * 60 * 1_000;

/// What advances stream time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TimeSource {
    /// The record's timestamp, at most five minutes ahead of the clock.
    #[default]
    Record,
    /// The clock when the record arrives; `arrival::resume` describes which clock.
    Arrival,
}

/// When a record counts as written, epoch milliseconds: its own timestamp may be late, and the stream time of its partition may be that of
/// another record. Two records with one id are copies if these intervals are at most the length of the window apart. Of an owner only the
/// stream time is kept: a late one does not count for a record that is more than a window behind that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordTime {
    /// Its timestamp if that is valid and below the stream time, otherwise the stream time.
    pub own_ms: i64,
    /// The stream time of its partition at its arrival; 0 while unknown.
    pub stream_ms: i64,
}

impl RecordTime {
    /// The earliest stream time at which an owner counts for the record, in a window of this length.
    pub fn oldest_ms(self, length_ms: i64) -> i64 {
        if self.stream_ms > 0 { self.own_ms.saturating_sub(length_ms) } else { i64::MIN }
    }

    /// Whether owners that arrived between these stream times, 0 while unknown, may be at most the length of the window away. All are while the time
    /// of the record is unknown.
    pub fn is_near(self, times_ms: RangeInclusive<i64>, length_ms: i64) -> bool {
        let (first_ms, last_ms) = times_ms.into_inner();
        let is_known = self.stream_ms > 0 && last_ms > 0;
        let latest_ms = self.stream_ms.saturating_add(length_ms);
        !is_known || last_ms >= self.oldest_ms(length_ms) && first_ms <= latest_ms
    }
}

impl RecordTime {
    /// The shortest window in which the record finds an owner with this stream time, ms; `None` while one of the times is unknown. A late record has
    /// no shorter one: its own time decides which owners count, but they expire by the clock of the partition.
    pub fn distance_ms(self, owner_ms: i64) -> Option<i64> {
        let is_known = self.stream_ms > 0 && owner_ms > 0;
        is_known.then(|| self.stream_ms.saturating_sub(owner_ms).saturating_abs())
    }
}

/// Running maximum of `min(timestamp, now + 5 min)`. The value at the last commit is kept, so that an
/// abort can restore it.
///
/// It never goes back within a transaction: late records and records without a timestamp do not change it. One
/// wrong timestamp far in the future advances it to five minutes ahead of the clock at most. It is always a time that an owner can have, whatever
/// the producer, the clock or a checkpoint says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamTime {
    source: TimeSource,
    current: i64,
    committed: i64,
    opened: Option<i64>,
    /// The time of the last record, at most `current`.
    own: i64,
}

impl StreamTime {
    /// Stream time is unknown until the first record.
    pub fn new(source: TimeSource) -> Self {
        Self { source, ..Self::default() }
    }

    /// Advances stream time by a record. A timestamp that is absent, zero or negative is ignored.
    pub fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) {
        let (observed, own) = match self.source {
            TimeSource::Record => {
                let timestamp_ms = timestamp_ms.unwrap_or(0);
                let observed = timestamp_ms.min(now_ms.saturating_add(MOST_AHEAD_MS)).min(Owner::LATEST_MS);
                // Where the clock was set back, the timestamp is not limited by it: it is only late.
                let own = timestamp_ms.min(self.current.max(observed));
                (observed, Some(own).filter(|ms| *ms > 0))
            }
            TimeSource::Arrival => (now_ms.min(Owner::LATEST_MS), None),
        };
        self.current = self.current.max(observed);
        self.own = own.unwrap_or(self.current);
        self.opened.get_or_insert(self.current);
    }

    /// Current stream time, epoch milliseconds; 0 while unknown.
    pub fn ms(&self) -> i64 {
        self.current
    }

    /// The time of the record that was observed last.
    pub fn record(&self) -> RecordTime {
        RecordTime { own_ms: self.own, stream_ms: self.current }
    }

    /// Stream time at the last [`StreamTime::commit`], epoch milliseconds; 0 while unknown.
    pub fn committed_ms(&self) -> i64 {
        self.committed
    }

    /// Stream time at the first record since the last [`StreamTime::commit`], epoch milliseconds; 0
    /// while unknown.
    pub fn opened_ms(&self) -> i64 {
        self.opened.unwrap_or(self.current)
    }

    /// Makes the current value final: it is committed.
    pub fn commit(&mut self) {
        self.committed = self.current;
        self.opened = None;
    }

    /// Restores the value at the last [`StreamTime::commit`].
    pub fn undo(&mut self) {
        self.current = self.committed;
        self.own = self.current;
        self.opened = None;
    }

    /// Sets stream time, forwards or back; 0 makes it unknown, and so does a negative one.
    pub fn set(&mut self, ms: i64) {
        self.current = ms.clamp(0, Owner::LATEST_MS);
        self.own = self.current;
        self.commit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::coordinates::Coordinates;

    const NOW: i64 = 1_700_000_000_000;

    #[test]
    fn it_never_goes_back() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW - 10), NOW);
        for nothing in [None, Some(-1), Some(0), Some(i64::MIN), Some(NOW - 1_000)] {
            time.observe(nothing, NOW);
            assert_eq!(time.ms(), NOW - 10, "after {nothing:?}");
        }
        time.observe(Some(NOW + 1), NOW);
        assert_eq!(time.record(), RecordTime { own_ms: NOW + 1, stream_ms: NOW + 1 });
    }

    #[test]
    fn a_late_record_has_two_times() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW), NOW);
        for (timestamp, own_ms) in [(Some(NOW - 7), NOW - 7), (None, NOW), (Some(-1), NOW), (Some(1), 1)] {
            time.observe(timestamp, NOW);
            assert_eq!(time.record(), RecordTime { own_ms, stream_ms: NOW }, "{timestamp:?}");
        }
        time.undo();
        assert_eq!(time.record(), RecordTime { own_ms: 0, stream_ms: 0 });
        let mut arrival = StreamTime::new(TimeSource::Arrival);
        arrival.observe(Some(NOW - 7), NOW);
        assert_eq!(arrival.record().own_ms, NOW);
    }

    #[test]
    fn a_timestamp_in_the_future_moves_it_five_minutes_ahead_at_most() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(i64::MAX), NOW);
        assert_eq!(time.ms(), NOW + MOST_AHEAD_MS);
    }

    #[test]
    fn no_timestamp_clock_or_checkpoint_makes_a_time_that_no_owner_has() {
        let extremes = [i64::MIN, -1, 0, NOW, Owner::LATEST_MS, Owner::LATEST_MS + 1, i64::MAX];
        let at = Coordinates { partition: 0, offset: 0 };
        for source in [TimeSource::Record, TimeSource::Arrival] {
            for (saved, now_ms) in extremes.iter().flat_map(|saved| extremes.map(|now| (*saved, now))) {
                let mut time = StreamTime::new(source);
                time.set(saved);
                for timestamp in extremes {
                    time.observe(Some(timestamp), now_ms);
                    let RecordTime { own_ms, stream_ms } = time.record();
                    let times = [own_ms, stream_ms, time.opened_ms()];
                    let are_possible = times.iter().all(|ms| Owner::is_possible(at, *ms));
                    assert!(are_possible, "{saved} {now_ms} {timestamp}: {times:?}");
                }
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_make_records_older() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW), NOW);
        time.observe(Some(NOW - 7), NOW - 10 * MOST_AHEAD_MS);
        assert_eq!(time.record(), RecordTime { own_ms: NOW - 7, stream_ms: NOW });
    }

    #[test]
    fn copies_are_at_most_a_window_apart() {
        let time = RecordTime { own_ms: NOW - 5, stream_ms: NOW };
        let is_near = |ms| time.is_near(ms..=ms, 100);
        assert_eq!(
            [NOW - 106, NOW - 105, NOW + 100, NOW + 101, 0].map(is_near),
            [false, true, true, false, true]
        );
        assert!(time.is_near(NOW - 900..=NOW - 105, 100) && time.is_near(NOW + 100..=NOW + 900, 100));
        assert!(RecordTime { own_ms: 0, stream_ms: 0 }.is_near(1..=1, 100), "its time is unknown");
    }

    #[test]
    fn arrival_ignores_timestamps() {
        let mut time = StreamTime::new(TimeSource::Arrival);
        time.observe(Some(i64::MAX), NOW);
        assert_eq!(time.ms(), NOW);
    }

    #[test]
    fn undo_restores_the_last_commit() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW), NOW);
        time.commit();
        time.observe(Some(NOW + 5), NOW);
        time.observe(Some(NOW + 9), NOW);
        assert_eq!((time.opened_ms(), time.ms()), (NOW + 5, NOW + 9));
        assert_eq!(time.committed_ms(), NOW);
        time.undo();
        assert_eq!((time.opened_ms(), time.ms()), (NOW, NOW));
    }
}
