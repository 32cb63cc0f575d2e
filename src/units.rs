//! Durations and sizes with units.

use std::time::Duration;

/// Parses a duration such as `24h`, `100ms` or `1h 30m`. The error is the predicate of a sentence.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        if !text.trim().is_empty() && text.trim().bytes().all(|b| b.is_ascii_digit()) {
            "has no unit".to_owned()
        } else {
            "is not a duration".to_owned()
        }
    })
}

/// Parses a size such as `32MiB`, `1GB` or `65536` (bytes). The error is the predicate of a sentence.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    text.trim().parse::<bytesize::ByteSize>().map(|size| size.0).map_err(|_| "is not a size".to_owned())
}

/// Milliseconds of a day.
const DAY_MS: u128 = 86_400_000;

/// A duration in d, h, m, s and ms, as in `24h` or `1h 30m`; days from two on. [`parse_duration`] is the inverse.
pub fn duration_text(duration: Duration) -> String {
    let ms = duration.as_millis();
    if Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)) != duration {
        return humantime::format_duration(duration).to_string();
    }
    let units = [(DAY_MS, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let (mut left, mut parts) = (ms, Vec::new());
    for (unit, name) in units.into_iter().skip(usize::from(ms < 2 * DAY_MS)) {
        if left >= unit {
            parts.push(format!("{}{name}", left / unit));
        }
        left %= unit;
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// A measured duration: [`duration_text`] of its two largest units, without milliseconds from one second on.
pub fn measured_text(duration: Duration) -> String {
    let ms = duration.as_millis();
    let unit = match ms {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..172_800_000 => 60_000,
        _ => 3_600_000,
    };
    duration_text(Duration::from_millis(u64::try_from(ms - ms % unit).unwrap_or(u64::MAX)))
}

/// [`measured_text`] of a number of seconds; none if it is negative.
pub fn seconds_text(seconds: f64) -> String {
    measured_text(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// A size in the largest unit of GiB, MiB, KiB that divides it, otherwise in bytes. [`parse_bytes`] is the inverse.
pub fn size_text(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units
        .iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(|| format!("{bytes}B"), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in ["24h", "1h 30m", "10s", "100ms", "36h", "1s 500ms", "47h 59m 59s", "2d", "37d 12h", "0s"]
        {
            assert_eq!(duration_text(parse_duration(text).unwrap()), text);
        }
        for text in ["32MiB", "1GiB", "3KiB", "1000B"] {
            assert_eq!(size_text(parse_bytes(text).unwrap()), text);
        }
        let odd = Duration::from_nanos(1_500);
        assert_eq!(parse_duration(&duration_text(odd)).unwrap(), odd);
    }

    #[test]
    fn a_measured_duration_has_two_units_at_most() {
        let texts = [0.0, 0.4, 61.9, 431.0, 86_400.0, 5_430.0, 172_800.0, 900_061.0, -1.0].map(seconds_text);
        assert_eq!(texts, ["0s", "400ms", "1m 1s", "7m 11s", "24h", "1h 30m", "2d", "10d 10h", "0s"]);
        assert_eq!(measured_text(Duration::from_micros(7_406)), "7ms");
    }

    #[test]
    fn units_are_parsed_and_required_for_durations() {
        assert_eq!(parse_duration("7 days").unwrap(), Duration::from_hours(168));
        assert_eq!(parse_bytes("65536").unwrap(), 65_536);
        assert_eq!(parse_bytes("1 MB").unwrap(), 1_000_000);
        assert_eq!(parse_duration("100"), Err("has no unit".to_owned()));
        assert_eq!(parse_duration("24x"), Err("is not a duration".to_owned()));
        assert_eq!(parse_duration("-1s"), Err("is not a duration".to_owned()));
        assert_eq!(parse_bytes("-1"), Err("is not a size".to_owned()));
    }
}
