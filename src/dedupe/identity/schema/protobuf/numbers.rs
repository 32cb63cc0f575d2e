//! Protobuf messages without a schema, by the numbers of their fields.

use std::borrow::Cow;

use super::super::super::json::index;
use super::super::NamedDocument;
use super::Occurrences;
use super::wire::WireValue;

/// Whether a path is one of field numbers: a name does not start with a digit.
pub fn is_of_numbers(path: &[String]) -> bool {
    path.first().is_some_and(|first| first.starts_with(|first: char| first.is_ascii_digit()))
}

/// The number that a field can have.
pub fn field_number(token: &str) -> Option<u32> {
    index(token)?.try_into().ok().filter(|number| (1..1 << 29).contains(number))
}

/// The scalar at this path of field numbers, without a schema: a varint as a signed number of 64 bits, other numbers without
/// sign, bytes and strings as they are.
pub(in super::super::super) fn find_by_numbers<'d>(
    named: NamedDocument<'d>,
    path: &[String],
) -> Option<Cow<'d, [u8]>> {
    match named.optionally_framed() {
        Some(framed) => framed.find(|document| find(framed.naming.split(document)?.1, path)),
        None => find(named.bytes, path),
    }
}

fn find<'d>(message: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
    let mut message = Occurrences::one(message);
    let (last, messages) = path.split_last()?;
    for step in messages {
        let step = field_number(step)?;
        let mut inner = Occurrences::default();
        let visit = |number, value| {
            if let WireValue::Len(bytes) = value
                && number == step
            {
                inner.push(bytes);
            }
            Ok(())
        };
        message.fields(visit).ok()?;
        message = inner;
    }
    let (mut found, last) = (None, field_number(last)?);
    let visit = |number, value| {
        if number == last {
            found = untyped(value).or(found.take());
        }
        Ok(())
    };
    message.fields(visit).ok()?;
    found.filter(|bytes| !bytes.is_empty())
}

fn untyped(value: WireValue<'_>) -> Option<Cow<'_, [u8]>> {
    let text = match value {
        WireValue::Len(bytes) => return Some(Cow::Borrowed(bytes)),
        WireValue::Varint(value) => value.cast_signed().to_string(),
        WireValue::Fixed64(bytes) => u64::from_le_bytes(bytes).to_string(),
        WireValue::Fixed32(bytes) => u32::from_le_bytes(bytes).to_string(),
        WireValue::Group => return None,
    };
    Some(Cow::Owned(text.into_bytes()))
}
