//! Protobuf messages, read up to their end: the last occurrence of a field counts, and occurrences of a message are merged.

use std::borrow::Cow;

mod naming;
mod numbers;
mod wire;

use super::super::json::index;
use crate::dedupe::varint;
use naming::MessageName;
pub use naming::Naming;
pub(in super::super) use numbers::find_by_numbers;
pub use numbers::{field_number, is_of_numbers};
use wire::{Malformed, Wire, WireValue};

/// The messages of a file and of what it imports. They refer to each other by their place in `messages`.
#[derive(Debug)]
pub struct ProtoSchema {
    /// All messages.
    pub messages: Vec<ProtoMessage>,
    /// The top-level messages of the file itself, in its order.
    pub roots: Vec<usize>,
    /// All messages of the file itself, those of the entries of maps too, by their full names.
    pub sorted: Vec<usize>,
}

/// A message.
#[derive(Debug, Default)]
pub struct ProtoMessage {
    /// Its full name.
    pub name: String,
    /// Its fields.
    pub fields: Vec<ProtoField>,
    /// The messages defined in it, in its order, without those that represent the entries of maps.
    pub nested: Vec<usize>,
}

/// A field.
#[derive(Debug)]
pub struct ProtoField {
    /// As written in the file.
    pub name: String,
    /// Its tag.
    pub number: u32,
    /// What it contains: of a map, the message of an entry.
    pub kind: ProtoKind,
    /// How often it may occur.
    pub repeated: Repeated,
    /// The number of its `oneof` in the message: a later field of the same one replaces it.
    pub oneof: Option<usize>,
    /// Whether an absent value differs from the default of its type. If not, some encoders write the default, and others do not.
    pub has_presence: bool,
}

/// How often a field may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeated {
    /// Once.
    No,
    /// Any number of times; a token of the path is the index.
    List,
    /// Once for each key; a token of the path is the key.
    Map,
}

/// What a field contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtoKind {
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// `uint32`.
    Uint32,
    /// `uint64`.
    Uint64,
    /// `sint32`.
    Sint32,
    /// `sint64`.
    Sint64,
    /// `fixed32`.
    Fixed32,
    /// `fixed64`.
    Fixed64,
    /// `sfixed32`.
    Sfixed32,
    /// `sfixed64`.
    Sfixed64,
    /// `float`.
    Float,
    /// `double`.
    Double,
    /// `bool`.
    Bool,
    /// `string`.
    Text,
    /// `bytes`.
    Bytes,
    /// The names of an enumeration.
    Enum(Vec<(i32, String)>),
    /// A message, by its place.
    Message(usize),
}

/// The bytes of a scalar; `None` when the field is absent.
type Read<'d> = Result<Option<Cow<'d, [u8]>>, Malformed>;

/// The occurrences of a message field. To merge them is to read one after the other.
#[derive(Default)]
struct Occurrences<'d> {
    earlier: Vec<&'d [u8]>,
    last: Option<&'d [u8]>,
}

impl<'d> Occurrences<'d> {
    fn one(message: &'d [u8]) -> Self {
        Self { earlier: Vec::new(), last: Some(message) }
    }

    fn push(&mut self, message: &'d [u8]) {
        self.earlier.extend(self.last.replace(message));
    }

    /// Passes the fields of all occurrences in order.
    fn fields(
        &self,
        mut visit: impl FnMut(u32, WireValue<'d>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        for message in self.earlier.iter().chain(&self.last) {
            let mut wire = Wire::new(message);
            while let Some((number, value)) = wire.field()? {
                visit(number, value)?;
            }
        }
        Ok(())
    }

    /// The last scalar with this number.
    fn scalar(&self, number: u32, kind: &ProtoKind) -> Read<'d> {
        let mut found = None;
        self.fields(|at, value| {
            if at == number
                && let Some(text) = text(kind, value)?
            {
                found = Some(text);
            }
            Ok(())
        })?;
        Ok(found)
    }
}

impl ProtoSchema {
    /// The scalar at this path of field names, indexes and map keys in the first message of the file. `None` when there is none,
    /// or when the bytes are no such message. An empty path stands for the full name of the message.
    pub fn find<'d>(&self, document: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        self.found(*self.roots.first()?, document, path)
    }

    /// The same in a document that names its message so.
    pub fn find_named<'d>(
        &self,
        naming: Naming<'_>,
        document: &'d [u8],
        path: &[String],
    ) -> Option<Cow<'d, [u8]>> {
        let (name, message) = naming.split(document)?;
        self.found(self.place(&name)?, message, path)
    }

    /// The place of the message with this name.
    fn place(&self, name: &MessageName<'_>) -> Option<usize> {
        let indexes = match name {
            MessageName::Indexes(indexes) => indexes,
            MessageName::Sorted(number) => return self.sorted.get(*number).copied(),
            MessageName::Simple(name) => {
                let is_named = |place: &usize| {
                    let full = self.messages.get(*place).and_then(|it| it.name.rsplit('.').next());
                    full.is_some_and(|full| full.as_bytes() == *name)
                };
                return self.roots.iter().copied().find(is_named);
            }
        };
        let (mut candidates, mut place) = (&self.roots, None);
        // No index is written as a count of zero and stands for the first message.
        for index in if indexes.is_empty() { &[0] } else { indexes.as_slice() } {
            let found = *candidates.get(*index)?;
            candidates = &self.messages.get(found)?.nested;
            place = Some(found);
        }
        place
    }

    fn found<'d>(&self, place: usize, message: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        if path.is_empty() {
            return self.messages.get(place).map(|message| message.name.clone().into_bytes().into());
        }
        self.read(place, &Occurrences::one(message), path).ok().flatten().filter(|bytes| !bytes.is_empty())
    }

    fn read<'d>(&self, place: usize, of: &Occurrences<'d>, path: &[String]) -> Read<'d> {
        let Some((message, (name, path))) = self.messages.get(place).zip(path.split_first()) else {
            return Ok(None);
        };
        let Some(field) = message.fields.iter().find(|field| field.name == *name) else { return Ok(None) };
        match (field.repeated, path.split_first()) {
            (Repeated::No, _) => self.singular(message, field, of, path),
            (_, None) => Ok(None),
            (Repeated::List, Some((token, path))) => match index(token) {
                Some(index) => self.element(field, of, index, path),
                None => Ok(None),
            },
            (Repeated::Map, Some((key, path))) => self.entry(field, of, key, path),
        }
    }

    fn singular<'d>(
        &self,
        message: &ProtoMessage,
        field: &ProtoField,
        of: &Occurrences<'d>,
        path: &[String],
    ) -> Read<'d> {
        let (mut scalar, mut inner) = (None, Occurrences::default());
        let is_sibling = |number: u32| {
            field.oneof.is_some()
                && message.fields.iter().any(|other| other.number == number && other.oneof == field.oneof)
        };
        of.fields(|number, value| {
            if number == field.number {
                match (&field.kind, value) {
                    (ProtoKind::Message(_), WireValue::Len(bytes)) => inner.push(bytes),
                    (kind, value) => scalar = text(kind, value)?.or(scalar.take()),
                }
            } else if is_sibling(number) {
                (scalar, inner) = (None, Occurrences::default());
            }
            Ok(())
        })?;
        match field.kind {
            ProtoKind::Message(place) => self.read(place, &inner, path),
            _ if !path.is_empty() => Ok(None),
            _ if field.has_presence => Ok(scalar),
            _ => Ok(scalar.filter(|text| **text != *field.kind.default_text().as_bytes())),
        }
    }

    fn element<'d>(
        &self,
        field: &ProtoField,
        of: &Occurrences<'d>,
        index: usize,
        path: &[String],
    ) -> Read<'d> {
        let (mut left, mut scalar, mut inner) = (index, None, None);
        let mut is_it = || {
            let is_it = left == 0;
            left = left.wrapping_sub(1);
            is_it
        };
        of.fields(|number, value| {
            match (&field.kind, value) {
                _ if number != field.number => {}
                (ProtoKind::Message(_), WireValue::Len(bytes)) => {
                    if is_it() {
                        inner = Some(bytes);
                    }
                }
                (kind, WireValue::Len(packed)) if kind.is_packable() => {
                    let mut wire = Wire::new(packed);
                    while let Some(value) = wire.packed(kind)? {
                        if is_it() {
                            scalar = text(kind, value)?;
                        }
                    }
                }
                (kind, value) => {
                    let text = text(kind, value)?;
                    if text.is_some() && is_it() {
                        scalar = text;
                    }
                }
            }
            Ok(())
        })?;
        match (&field.kind, inner) {
            (ProtoKind::Message(place), Some(bytes)) => self.read(*place, &Occurrences::one(bytes), path),
            _ => Ok(scalar.filter(|_| path.is_empty())),
        }
    }

    /// The last entry with this key. Number 1 of an entry is the key, 2 the value.
    fn entry<'d>(&self, field: &ProtoField, of: &Occurrences<'d>, key: &str, path: &[String]) -> Read<'d> {
        let ProtoKind::Message(place) = field.kind else { return Ok(None) };
        let parts = self.messages.get(place).and_then(|entry| {
            let part = |number| entry.fields.iter().find(|field| field.number == number);
            part(1).zip(part(2))
        });
        let Some((key_field, value_field)) = parts else { return Ok(None) };
        let default = key_field.kind.default_text().as_bytes();
        let mut last = None;
        of.fields(|number, value| {
            if let WireValue::Len(entry) = value
                && number == field.number
            {
                let entry = Occurrences::one(entry);
                let found = entry.scalar(1, &key_field.kind)?;
                if found.as_deref().unwrap_or(default) == key.as_bytes() {
                    last = Some(entry);
                }
            }
            Ok(())
        })?;
        match (last, self.messages.get(place)) {
            (Some(entry), Some(message)) => self.singular(message, value_field, &entry, path),
            _ => Ok(None),
        }
    }
}

impl ProtoKind {
    fn is_packable(&self) -> bool {
        !matches!(self, Self::Text | Self::Bytes | Self::Message(_))
    }

    /// The text of the default.
    fn default_text(&self) -> &str {
        match self {
            Self::Text | Self::Bytes => "",
            Self::Bool => "false",
            Self::Enum(names) => names.iter().find(|(number, _)| *number == 0).map_or("0", |(_, name)| name),
            _ => "0",
        }
    }
}

/// The text of a scalar; `None` when the value has another wire type, which makes it an unknown field.
fn text<'d>(kind: &ProtoKind, value: WireValue<'d>) -> Read<'d> {
    let text = match (kind, value) {
        (ProtoKind::Text, WireValue::Len(bytes)) => {
            std::str::from_utf8(bytes).map_err(|_| Malformed)?;
            return Ok(Some(Cow::Borrowed(bytes)));
        }
        (ProtoKind::Bytes, WireValue::Len(bytes)) => return Ok(Some(Cow::Borrowed(bytes))),
        (ProtoKind::Int32, WireValue::Varint(value)) => low_half(value).cast_signed().to_string(),
        (ProtoKind::Int64, WireValue::Varint(value)) => value.cast_signed().to_string(),
        (ProtoKind::Uint32, WireValue::Varint(value)) => low_half(value).to_string(),
        (ProtoKind::Uint64, WireValue::Varint(value)) => value.to_string(),
        (ProtoKind::Sint32, WireValue::Varint(value)) => {
            varint::unzigzag(u64::from(low_half(value))).to_string()
        }
        (ProtoKind::Sint64, WireValue::Varint(value)) => varint::unzigzag(value).to_string(),
        (ProtoKind::Bool, WireValue::Varint(value)) => (value != 0).to_string(),
        (ProtoKind::Enum(names), WireValue::Varint(value)) => {
            let number = low_half(value).cast_signed();
            let name = names.iter().find(|(named, _)| *named == number);
            name.map_or_else(|| number.to_string(), |(_, name)| name.clone())
        }
        (ProtoKind::Fixed32, WireValue::Fixed32(bytes)) => u32::from_le_bytes(bytes).to_string(),
        (ProtoKind::Sfixed32, WireValue::Fixed32(bytes)) => i32::from_le_bytes(bytes).to_string(),
        (ProtoKind::Float, WireValue::Fixed32(bytes)) => f32::from_le_bytes(bytes).to_string(),
        (ProtoKind::Fixed64, WireValue::Fixed64(bytes)) => u64::from_le_bytes(bytes).to_string(),
        (ProtoKind::Sfixed64, WireValue::Fixed64(bytes)) => i64::from_le_bytes(bytes).to_string(),
        (ProtoKind::Double, WireValue::Fixed64(bytes)) => f64::from_le_bytes(bytes).to_string(),
        _ => return Ok(None),
    };
    Ok(Some(Cow::Owned(text.into_bytes())))
}

/// The lower 32 bits: a number of 32 bits may be written with more.
fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
