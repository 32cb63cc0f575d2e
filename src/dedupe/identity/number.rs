//! Numbers as text, by their decimal value.

/// The digits of an exponent that are read. A number with more is left as it is.
const EXPONENT_DIGITS: usize = 15;

/// A JSON number (RFC 8259, section 6) as its digits without zeros at either end, and the power of ten by which they are
/// multiplied, if that is not 1: `-250` as `-25e1`. Nothing is rounded, and no power is written out, so the form is about as long as the text.
/// `None` for other text.
pub(super) fn normal_form(text: &[u8]) -> Option<Vec<u8>> {
    let (is_negative, rest) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let (whole, rest) = digits(rest);
    let (fraction, rest) = match rest.strip_prefix(b".") {
        Some(rest) => Some(digits(rest)).filter(|(fraction, _)| !fraction.is_empty())?,
        None => (&b""[..], rest),
    };
    let power = exponent(rest)?;
    if whole.is_empty() || whole.len() > 1 && whole.starts_with(b"0") {
        return None;
    }
    let all = [whole, fraction].concat();
    let Some(first) = all.iter().position(|digit| *digit != b'0') else { return Some(b"0".to_vec()) };
    let end = all.iter().rposition(|digit| *digit != b'0')? + 1;
    let zeros = i64::try_from(all.len() - end).ok()?;
    let power = power + zeros - i64::try_from(fraction.len()).ok()?;
    let mut form = if is_negative { b"-".to_vec() } else { Vec::new() };
    form.extend_from_slice(all.get(first..end)?);
    if power != 0 {
        form.extend_from_slice(format!("e{power}").as_bytes());
    }
    Some(form)
}

/// The digits at the beginning, and what follows.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// The power of ten at the end of a number: 0 for no text, `None` for text that is none.
fn exponent(text: &[u8]) -> Option<i64> {
    let [b'e' | b'E', rest @ ..] = text else { return text.is_empty().then_some(0) };
    let unsigned = rest.strip_prefix(b"-").or_else(|| rest.strip_prefix(b"+")).unwrap_or(rest);
    let (number, behind) = digits(unsigned);
    if !behind.is_empty() || number.is_empty() || number.len() > EXPONENT_DIGITS {
        return None;
    }
    str::from_utf8(rest).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_one_value_have_one_form() {
        let form = |text: &str| normal_form(text.as_bytes()).map(|form| String::from_utf8(form).unwrap());
        for (texts, expected) in [
            (&["2", "2.0", "2.00", "2e0", "20e-1", "0.2E+1", "2e00"][..], "2"),
            (&["0", "-0", "0.0", "0e9", "-0.00e-3"], "0"),
            (&["-250", "-2.5e2", "-25E1"], "-25e1"),
            (&["1e400", "10e399"], "1e400"),
            (&["0.001", "1e-3", "0.1e-2"], "1e-3"),
            (&["12345678901234567890.10"], "123456789012345678901e-1"),
        ] {
            for text in texts {
                assert_eq!(form(text).as_deref(), Some(expected), "{text}");
            }
        }
        for text in
            ["", "-", "007", ".5", "5.", "+1", "1e", "1e+", "1x", "0x1", "1 ", "NaN", "1e1234567890123456"]
        {
            assert_eq!(form(text), None, "{text}");
        }
        let long = format!("1{}", "0".repeat(10_000));
        assert_eq!(form(&long).as_deref(), Some("1e10000"));
    }
}
