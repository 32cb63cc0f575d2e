//! A range of time, and which part of a log lies in it.
//!
//! The range begins at the first record whose timestamp is not before `from`, and ends at the first whose
//! timestamp is not before `to`: a log is in the order of arrival, not of timestamps, and a clean log is a part
//! of its raw log in the same order, so both are cut at the same records.

use std::ops::ControlFlow;
use std::time::{Duration, UNIX_EPOCH};

use super::record::Seen;

/// A point in time as a person gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// ms since the epoch.
    At(i64),
    /// So long ago.
    Ago(Duration),
}

impl Moment {
    /// Reads RFC 3339, as in `2026-05-01T12:00:00Z` or `2026-05-01T14:00:00+02:00`, or a duration back from
    /// now, as in `90m`. The error says what is wrong, continuing a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(ms) = rfc3339(text) {
            return Ok(Self::At(ms));
        }
        crate::config::parse_duration(text).map(Self::Ago).map_err(|_| {
            "is no time: write RFC 3339, as in 2026-05-01T12:00:00Z, or a duration back from now, as in 90m".to_owned()
        })
    }

    /// ms since the epoch.
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

/// The range that is audited, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// Records with timestamps before this are not judged.
    pub from_ms: Option<i64>,
    /// From the first record with such a timestamp on, none is judged.
    pub to_ms: Option<i64>,
}

/// Where in its log a raw record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Before the range: it tells which ids are known.
    Before,
    /// In the range.
    Within,
    /// Behind it: it may be in clean, and need not.
    Behind,
}

/// Cuts a log at the borders of a range; records come by rising offset.
#[derive(Debug)]
pub(super) struct Cut {
    range: Range,
    part: Part,
}

impl Cut {
    pub fn new(range: Range) -> Self {
        Self { range, part: Part::Before }
    }

    /// Where the next record stands.
    pub fn part(&mut self, record: &Seen) -> Part {
        let time_ms = record.content.timestamp_ms();
        if self.part == Part::Before && self.range.from_ms.is_none_or(|from_ms| time_ms >= from_ms) {
            self.part = Part::Within;
        }
        if self.part == Part::Within && self.range.to_ms.is_some_and(|to_ms| time_ms >= to_ms) {
            self.part = Part::Behind;
        }
        self.part
    }
}

/// The record with which a clean log leaves the range: raw is read up to the same record, because whatever
/// clean holds before it stands before it in raw.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Last(pub Option<Seen>);

impl Last {
    /// Whether this raw record is that one.
    pub fn flow(&self, part: Part, record: &Seen) -> ControlFlow<()> {
        let is_it = |last: &Seen| (last.print, last.content) == (record.print, record.content);
        if part == Part::Behind && self.0.as_ref().is_some_and(is_it) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_zone_or_counted_back() {
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
