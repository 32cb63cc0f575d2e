//! Numbers as varints (LEB128): seven bits for each byte, the lowest first. As in Avro and Protobuf, and in our own formats.

/// Appends a number.
pub(crate) fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Takes the number at the start; `None` if the bytes end within it, or if it has more than 64 bits.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        // The tenth byte has one bit.
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// A signed number as an unsigned one that is small if the number is near zero.
pub(crate) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// The reverse of [`zigzag`].
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_as_it_was_written_and_no_other_bytes_are() {
        let borders = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, !(1 << bit)]);
        for number in borders.chain([u64::MAX]) {
            let mut bytes = Vec::new();
            push(&mut bytes, number);
            assert!(!bytes.is_empty() && bytes.len() <= 10);
            assert_eq!(take(&mut &bytes[..]), Some(number));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
            assert_eq!(unzigzag(zigzag(number.cast_signed())), number.cast_signed());
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
        let too_large = [[0xff; 9].as_slice(), &[2]].concat();
        let too_long = [0x80; 11];
        assert_eq!([take(&mut &too_large[..]), take(&mut &too_long[..])], [None, None]);
    }
}
