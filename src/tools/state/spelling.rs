//! Formats times.

use std::time::{Duration, UNIX_EPOCH};

/// The last millisecond of the year 9999. Later times cannot be written as a date.
const LAST_MS: i64 = 253_402_300_799_999;

/// Formats stream time as UTC, as in `2026-11-20T08:00:00.000Z`. Returns `unknown` for 0 and less, which is not a
/// time.
#[must_use]
pub fn utc(ms: i64) -> String {
    match u64::try_from(ms) {
        Ok(ms @ 1..) if ms <= LAST_MS.unsigned_abs() => {
            humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
        }
        Ok(1..) => format!("{ms} ms"),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_utc_where_they_are_dates() {
        assert_eq!(utc(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert_eq!((utc(0), utc(i64::MIN)), ("unknown".to_owned(), "unknown".to_owned()));
        assert_eq!(utc(i64::MAX), format!("{} ms", i64::MAX));
    }
}
