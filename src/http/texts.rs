//! Numbers and texts on the status page.

/// A number with its digits in groups of three.
pub(super) fn grouped(number: u64) -> String {
    in_groups(&number.to_string())
}

/// The same for a number that is not an integer: it is rounded.
pub(super) fn rounded(number: f64) -> String {
    in_groups(&format!("{number:.0}"))
}

fn in_groups(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Percent of a whole with one digit after the point; `None` of nothing. Rounded down: 100 % means all.
pub(super) fn rounded_down(part: u64, of: u64) -> Option<String> {
    let tenths = (1_000 * u128::from(part)).checked_div(of.into())?;
    Some(format!("{}.{} %", tenths / 10, tenths % 10))
}

/// A number of bytes in the largest binary unit.
pub(super) fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = count;
    for unit in units {
        if scaled < 1_024.0 || unit == "TiB" {
            let digits = usize::from(scaled < 10.0 && unit != "B");
            return format!("{scaled:.digits$} {unit}");
        }
        scaled /= 1_024.0;
    }
    String::new()
}

/// Text escaped for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(rounded_down(9_999, 10_000).as_deref(), Some("99.9 %"));
        assert_eq!((rounded_down(7, 7).as_deref(), rounded_down(0, 0)), (Some("100.0 %"), None));
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1_536.0), "1.5 KiB");
        assert_eq!(bytes(123_456_789.0), "118 MiB");
    }

    #[test]
    fn text_is_escaped_and_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
