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

/// A duration in the largest unit of h, m, s, ms that divides it. [`parse_duration`] is the inverse.
pub fn duration_text(duration: Duration) -> String {
    let ms = duration.as_millis();
    if Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)) != duration {
        return humantime::format_duration(duration).to_string();
    }
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    units
        .iter()
        .find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit))
        .map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
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
        for text in ["24h", "90m", "10s", "100ms", "36h", "1500ms"] {
            assert_eq!(duration_text(parse_duration(text).unwrap()), text);
        }
        for text in ["32MiB", "1GiB", "3KiB", "1000B"] {
            assert_eq!(size_text(parse_bytes(text).unwrap()), text);
        }
        let odd = Duration::from_nanos(1_500);
        assert_eq!(parse_duration(&duration_text(odd)).unwrap(), odd);
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
