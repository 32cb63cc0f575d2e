//! A partition's own clock.

/// How far a record's timestamp may run ahead of the clock before it is cut, in ms: five minutes.
pub const MOST_AHEAD_MS: i64 = 5 * 60 * 1_000;

/// What moves stream time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TimeSource {
    /// The record's timestamp, at most [`MOST_AHEAD_MS`] ahead of the clock.
    #[default]
    Record,
    /// The clock when the record arrives; see [`super::resume`] for which.
    Arrival,
}

/// Running maximum of `min(timestamp, now + 5 min)`, with the value at the last commit kept so that
/// an aborted transaction can be undone.
///
/// It never goes back by itself, so late records and records without a timestamp leave it where it
/// is, and one poisoned timestamp from the future moves it by five minutes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamTime {
    source: TimeSource,
    current: i64,
    settled: i64,
    opened: Option<i64>,
}

impl StreamTime {
    /// A clock that knows no time yet.
    #[must_use]
    pub fn new(source: TimeSource) -> Self {
        Self { source, current: 0, settled: 0, opened: None }
    }

    /// Takes a record into account. A timestamp that is absent, zero or negative says nothing.
    pub fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) {
        let told = match self.source {
            TimeSource::Record => timestamp_ms.unwrap_or(0).min(now_ms.saturating_add(MOST_AHEAD_MS)),
            TimeSource::Arrival => now_ms,
        };
        self.current = self.current.max(told);
        self.opened.get_or_insert(self.current);
    }

    /// Stream time now, ms since the epoch; 0 while unknown.
    #[must_use]
    pub fn ms(&self) -> i64 {
        self.current
    }

    /// Stream time at the first record since the last [`StreamTime::settle`], ms since the epoch; 0
    /// while unknown.
    #[must_use]
    pub fn opened_ms(&self) -> i64 {
        self.opened.unwrap_or(self.current)
    }

    /// What was observed is committed.
    pub fn settle(&mut self) {
        self.settled = self.current;
        self.opened = None;
    }

    /// What was observed since the last [`StreamTime::settle`] did not happen.
    pub fn undo(&mut self) {
        self.current = self.settled;
        self.opened = None;
    }

    /// Sets stream time from a checkpoint, forwards or back; a value that is no time is ignored.
    pub fn set(&mut self, ms: i64) {
        if ms > 0 {
            self.current = ms;
        }
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    #[test]
    fn it_never_goes_back() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW - 10), NOW);
        for nothing in [None, Some(-1), Some(0), Some(i64::MIN), Some(NOW - 1_000)] {
            time.observe(nothing, NOW);
            assert_eq!(time.ms(), NOW - 10, "after {nothing:?}");
        }
    }

    #[test]
    fn a_poisoned_timestamp_moves_it_five_minutes_at_most() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(i64::MAX), NOW);
        assert_eq!(time.ms(), NOW + MOST_AHEAD_MS);
    }

    #[test]
    fn arrival_ignores_timestamps() {
        let mut time = StreamTime::new(TimeSource::Arrival);
        time.observe(Some(i64::MAX), NOW);
        assert_eq!(time.ms(), NOW);
    }

    #[test]
    fn undo_returns_to_the_last_commit() {
        let mut time = StreamTime::new(TimeSource::Record);
        time.observe(Some(NOW), NOW);
        time.settle();
        time.observe(Some(NOW + 5), NOW);
        time.observe(Some(NOW + 9), NOW);
        assert_eq!((time.opened_ms(), time.ms()), (NOW + 5, NOW + 9));
        time.undo();
        assert_eq!((time.opened_ms(), time.ms()), (NOW, NOW));
    }
}
