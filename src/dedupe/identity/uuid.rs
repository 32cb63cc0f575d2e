//! UUIDs as text.

/// The 16 bytes of UUID text: 8-4-4-4-12 hex digits, or 32 without hyphens, in any case.
pub(super) fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let digits: [u8; 32] = if let Ok(hyphenated) = <&[u8; 36]>::try_from(text) {
        without_hyphens(hyphenated)?
    } else {
        text.try_into().ok()?
    };
    let mut bytes = [0; 16];
    let mut seen = 0;
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        let (high, low) = (digit(*high), digit(*low));
        seen |= high | low;
        *byte = (high << 4) | (low & 0x0f);
    }
    (seen <= 0x0f).then_some(bytes)
}

/// The text of a UUID: 8-4-4-4-12 lower-case hex digits.
pub(super) fn hyphenated(bytes: [u8; 16]) -> [u8; 36] {
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    let mut digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0x0f)]);
    std::array::from_fn(|place| {
        if [8, 13, 18, 23].contains(&place) { b'-' } else { digits.next().unwrap_or_default() }
    })
}

fn without_hyphens(text: &[u8; 36]) -> Option<[u8; 32]> {
    let hyphens = [8, 13, 18, 23].map(|at: usize| text.get(at).copied());
    if hyphens != [Some(b'-'); 4] {
        return None;
    }
    let mut digits = [0; 32];
    for (to, from) in [(0..8, 0..8), (8..12, 9..13), (12..16, 14..18), (16..20, 19..23), (20..32, 24..36)] {
        digits.get_mut(to)?.copy_from_slice(text.get(from)?);
    }
    Some(digits)
}

/// The value of a hex digit, 0xff for any other byte. Compiles without branches, because the digits of a UUID cannot
/// be predicted.
fn digit(byte: u8) -> u8 {
    let number = byte.wrapping_sub(b'0');
    let letter = (byte | 0x20).wrapping_sub(b'a');
    if number < 10 {
        number
    } else if letter < 6 {
        letter + 10
    } else {
        0xff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_only_resembles_a_uuid_is_not_one() {
        for text in [
            "01234567-89ab-cdef-0123-456789abcdeg",
            "01234567+89ab-cdef-0123-456789abcdef",
            "012345678-9ab-cdef-0123-456789abcdef",
            "{1234567-89ab-cdef-0123-456789abcde}",
            "0123456789abcdef0123456789abcde:",
            "0123456789abcdef0123456789abcde@",
            "0123456789abcdef0123456789abcde`",
            "0123456789abcdef0123456789abcde/",
        ] {
            assert_eq!(uuid(text.as_bytes()), None, "{text}");
        }
    }
}
