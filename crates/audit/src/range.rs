//! A time range, and the part of a log within it.
//!
//! The range starts at the first record whose timestamp is not before `from`, and ends before the first record
//! whose timestamp is not before `to`. A log is ordered by arrival, not by timestamp, and a clean log is a
//! subsequence of its raw log. So both are cut at the same records. Behind `rekey` it is none: the records of several logs are mixed
//! in it. There each record is cut by its own timestamp.

use std::time::{Duration, UNIX_EPOCH};

use super::record::Seen;

/// A point in time as typed by a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Epoch milliseconds.
    At(i64),
    /// This long before now.
    Ago(Duration),
}

impl Moment {
    /// Parses RFC 3339, as in `2026-05-01T12:00:00Z` or `2026-05-01T14:00:00+02:00`, or a duration before now,
    /// as in `90m`. The error is the end of a sentence whose subject is the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(ms) = rfc3339(text) {
            return Ok(Self::At(ms));
        }
        humantime::parse_duration(text).map(Self::Ago).map_err(|_| {
            "is not a time: write RFC 3339, as in 2026-05-01T12:00:00Z, or a duration before now, as in 90m".to_owned()
        })
    }

    /// Epoch milliseconds.
    #[must_use]
    pub fn ms(self, now_ms: i64) -> i64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => now_ms.saturating_sub(whole_ms(ago)),
        }
    }
}

/// A duration in ms.
pub(super) fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn rfc3339(text: &str) -> Option<i64> {
    let (local, east_minutes) = if let Some(local) = text.strip_suffix(['Z', 'z']) {
        (local, 0)
    } else {
        let (local, zone) = text.split_at_checked(text.len().checked_sub(6)?)?;
        let (hours, minutes) = zone.get(1..)?.split_once(':')?;
        let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
        let east = i64::from(hours) * 60 + i64::from(minutes);
        match zone.bytes().next()? {
            b'+' if hours < 24 && minutes < 60 => (local, east),
            b'-' if hours < 24 && minutes < 60 => (local, -east),
            _ => return None,
        }
    };
    let time = humantime::parse_rfc3339_weak(&format!("{local}Z")).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(whole_ms(since) - east_minutes * 60_000)
}

/// The audited range, epoch milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The range starts at the first record with this timestamp or a later one.
    pub from_ms: Option<i64>,
    /// The range ends before the first record with this timestamp or a later one.
    pub to_ms: Option<i64>,
}

impl Range {
    fn part(self, time_ms: i64) -> Part {
        if self.from_ms.is_some_and(|from_ms| time_ms < from_ms) {
            Part::Before
        } else if self.to_ms.is_some_and(|to_ms| time_ms >= to_ms) {
            Part::Behind
        } else {
            Part::Within
        }
    }
}

/// The position of a raw record relative to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Before the range: only its id matters.
    Before,
    /// In the range.
    Within,
    /// After the range: it may be in clean, but need not be.
    Behind,
}

/// Cuts a log at the borders of a range; records are passed by increasing offset.
#[derive(Debug)]
pub(super) struct Cut {
    range: Range,
    /// Whether each record is cut by its own timestamp, not by its position.
    by_record: bool,
    part: Part,
}

impl Cut {
    pub fn new(range: Range, by_record: bool) -> Self {
        Self { range, by_record, part: Part::Before }
    }

    /// The part that the next record belongs to.
    pub fn part(&mut self, record: &Seen) -> Part {
        let part = self.range.part(record.content.timestamp_ms());
        self.part = if self.by_record { part } else { self.part.max(part) };
        self.part
    }
}

/// The first clean record after the range. Raw is read up to the same record: whatever precedes it in clean
/// also precedes it in raw.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last(pub Option<Seen>);

impl Last {
    /// Whether this is its raw record.
    pub fn is(&self, record: &Seen) -> bool {
        let is_last = |last: &Seen| (last.fingerprint, last.content) == (record.fingerprint, record.content);
        self.0.as_ref().is_some_and(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_their_zone_or_as_durations_before_now() {
        let noon = 1_777_636_800_000;
        for text in [
            "2026-05-01T12:00:00Z",
            "2026-05-01 12:00:00Z",
            "2026-05-01T14:00:00+02:00",
            "2026-05-01T06:30:00-05:30",
        ] {
            assert_eq!(Moment::parse(text), Ok(Moment::At(noon)), "{text}");
        }
        assert_eq!(Moment::parse("2026-05-01T12:00:00.250Z").unwrap().ms(0), noon + 250);
        assert_eq!(Moment::parse("90m").unwrap().ms(noon), noon - 5_400_000);
        for text in [
            "",
            "yesterday",
            "2026-05-01",
            "2026-05-01T12:00:00",
            "2026-13-01T12:00:00Z",
            "12:00:00+02:00",
            "90",
        ] {
            assert!(Moment::parse(text).unwrap_err().contains("RFC 3339"), "{text:?}");
        }
    }
}
