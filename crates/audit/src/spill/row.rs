//! Encoding of fixed-size rows.

/// A value of fixed size that can be written to a file and read back.
pub trait Row: Copy {
    /// Encoded size, bytes.
    const BYTES: usize;

    /// Appends exactly [`Self::BYTES`] bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Decodes what [`Self::put`] wrote and removes it from the front; zeros if `bytes` is too short.
    fn get(bytes: &mut &[u8]) -> Self;
}

impl<const N: usize> Row for [u8; N] {
    const BYTES: usize = N;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn get(bytes: &mut &[u8]) -> Self {
        let Some((first, rest)) = bytes.split_first_chunk() else { return [0; N] };
        *bytes = rest;
        *first
    }
}

macro_rules! encode_numbers {
    ($($number:ty),*) => {$(
        impl Row for $number {
            const BYTES: usize = size_of::<$number>();

            fn put(&self, out: &mut Vec<u8>) {
                self.to_le_bytes().put(out);
            }

            fn get(bytes: &mut &[u8]) -> Self {
                Self::from_le_bytes(Row::get(bytes))
            }
        }
    )*};
}

encode_numbers!(u8, u32, u64, i64);

impl Row for bool {
    const BYTES: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }

    fn get(bytes: &mut &[u8]) -> Self {
        u8::get(bytes) != 0
    }
}

/// Implements [`Row`] for a structure, field by field.
macro_rules! encode_fields {
    ($name:ty { $($field:tt: $kind:ty),* }) => {
        impl $crate::spill::Row for $name {
            const BYTES: usize = 0 $(+ <$kind as $crate::spill::Row>::BYTES)*;

            fn put(&self, out: &mut Vec<u8>) {
                $($crate::spill::Row::put(&self.$field, out);)*
            }

            fn get(bytes: &mut &[u8]) -> Self {
                Self { $($field: <$kind as $crate::spill::Row>::get(bytes)),* }
            }
        }
    };
}
pub(crate) use encode_fields;
