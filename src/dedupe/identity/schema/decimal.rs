//! Numbers as text.

/// Longest unscaled value, in bytes: the work grows with the square of the length, and a record can have any.
const BYTES_MAX: usize = 256;
/// Nine digits fit into 32 bits.
const CHUNK: u64 = 1_000_000_000;

/// The decimal text of a big-endian number in two's complement, with this many digits after the point: `-0.05`. `None` for no
/// bytes, and for more than 256.
pub(super) fn decimal_text(bytes: &[u8], scale: u32) -> Option<String> {
    if bytes.is_empty() || bytes.len() > BYTES_MAX {
        return None;
    }
    let is_negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    let mut digits = digits(magnitude(bytes, is_negative));
    let scale = usize::try_from(scale).ok()?;
    if digits.len() <= scale {
        digits.insert_str(0, &"0".repeat(scale + 1 - digits.len()));
    }
    if scale > 0 {
        digits.insert(digits.len() - scale, '.');
    }
    if is_negative {
        digits.insert(0, '-');
    }
    Some(digits)
}

/// The absolute value, big-endian.
fn magnitude(bytes: &[u8], is_negative: bool) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in bytes.iter_mut().rev() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    bytes
}

/// The decimal digits, without leading zeros; `0` for zero.
fn digits(mut number: Vec<u8>) -> String {
    let mut chunks = Vec::new();
    while number.iter().any(|byte| *byte != 0) {
        let mut rest = 0;
        for byte in &mut number {
            let part = (rest << 8) | u64::from(*byte);
            // The quotient is below 256, because the rest is below the divisor.
            *byte = u8::try_from(part / CHUNK).unwrap_or(u8::MAX);
            rest = part % CHUNK;
        }
        chunks.push(rest);
    }
    let mut chunks = chunks.into_iter().rev();
    let first = chunks.next().unwrap_or(0).to_string();
    chunks.fold(first, |text, chunk| format!("{text}{chunk:09}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_the_digits_of_their_scale() {
        let text = |number: i64, scale| decimal_text(&number.to_be_bytes(), scale).unwrap();
        for (number, scale, expected) in [
            (0, 0, "0"),
            (0, 2, "0.00"),
            (5, 2, "0.05"),
            (-5, 2, "-0.05"),
            (1_230, 2, "12.30"),
            (1_000_000_000, 0, "1000000000"),
            (i64::MIN, 0, "-9223372036854775808"),
            (i64::MAX, 19, "0.9223372036854775807"),
        ] {
            assert_eq!(text(number, scale), expected);
        }
        assert_eq!(decimal_text(&[0xff], 0).as_deref(), Some("-1"));
        assert_eq!(decimal_text(&[0x80], 1).as_deref(), Some("-12.8"));
        assert_eq!(decimal_text(&[], 0), None);
        assert_eq!(decimal_text(&[1; BYTES_MAX + 1], 0), None);
    }

    proptest::proptest! {
        #[test]
        fn numbers_of_16_bytes_have_their_text(number: i128) {
            let text = decimal_text(&number.to_be_bytes(), 0);
            proptest::prop_assert_eq!(text, Some(number.to_string()));
        }
    }
}
