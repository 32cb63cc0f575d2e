//! The wire format of Protobuf.

use super::ProtoKind;
use crate::dedupe::varint;

/// Most groups inside of each other, as in other implementations.
const DEPTH_MAX: usize = 100;

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// A value without its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireValue<'d> {
    Varint(u64),
    Fixed64([u8; 8]),
    Len(&'d [u8]),
    /// A group, which is skipped.
    Group,
    Fixed32([u8; 4]),
}

/// The bytes that are left.
pub(super) struct Wire<'d> {
    rest: &'d [u8],
}

impl<'d> Wire<'d> {
    pub fn new(rest: &'d [u8]) -> Self {
        Self { rest }
    }

    pub fn rest(&self) -> &'d [u8] {
        self.rest
    }

    /// The next field; `None` at the end.
    pub fn field(&mut self) -> Result<Option<(u32, WireValue<'d>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        let value = if wire_type == 3 { self.group(number)? } else { self.value(wire_type)? };
        Ok(Some((number, value)))
    }

    /// The number and wire type of a field.
    fn key(&mut self) -> Result<(u32, u32), Malformed> {
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        if key >> 3 == 0 { Err(Malformed) } else { Ok((key >> 3, key & 7)) }
    }

    fn value(&mut self, wire_type: u32) -> Result<WireValue<'d>, Malformed> {
        Ok(match wire_type {
            0 => WireValue::Varint(self.varint()?),
            1 => WireValue::Fixed64(*self.array()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
                self.rest = rest;
                WireValue::Len(bytes)
            }
            5 => WireValue::Fixed32(*self.array()?),
            _ => return Err(Malformed),
        })
    }

    /// Skips the rest of a group.
    fn group(&mut self, number: u32) -> Result<WireValue<'d>, Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            match self.key()? {
                (number, 4) if number == *innermost => drop(open.pop()),
                (number, 3) if open.len() < DEPTH_MAX => open.push(number),
                (_, wire_type) => drop(self.value(wire_type)?),
            }
        }
        Ok(WireValue::Group)
    }

    /// The next element of a packed list; `None` at the end.
    pub fn packed(&mut self, kind: &ProtoKind) -> Result<Option<WireValue<'d>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let wire_type = match kind {
            ProtoKind::Fixed32 | ProtoKind::Sfixed32 | ProtoKind::Float => 5,
            ProtoKind::Fixed64 | ProtoKind::Sfixed64 | ProtoKind::Double => 1,
            _ => 0,
        };
        self.value(wire_type).map(Some)
    }

    /// A signed number in zigzag encoding.
    pub fn signed(&mut self) -> Result<i64, Malformed> {
        self.varint().map(varint::unzigzag)
    }

    pub fn varint(&mut self) -> Result<u64, Malformed> {
        varint::take(&mut self.rest).ok_or(Malformed)
    }

    fn array<const N: usize>(&mut self) -> Result<&'d [u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(array)
    }
}
