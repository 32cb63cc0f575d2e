//! Encoding of fixed-size rows.

/// A row that can be written to a file and read back.
pub trait Row: Copy + Ord {
    /// Encoded size, bytes.
    const BYTES: usize;

    /// Appends exactly [`Self::BYTES`] bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Decodes what [`Self::put`] wrote.
    fn get(parts: &mut Parts<'_>) -> Self;
}

/// The bytes of a row, consumed from the front.
pub struct Parts<'a>(pub &'a [u8]);

impl Parts<'_> {
    /// The next `N` bytes; zeros past the end, which no row reaches.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.0 = rest;
                *bytes
            }
            None => [0; N],
        }
    }

    /// The next number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }
}

impl Row for u64 {
    const BYTES: usize = 8;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn get(parts: &mut Parts<'_>) -> Self {
        parts.u64()
    }
}
