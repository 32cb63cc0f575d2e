//! Reads the binary encoding of Avro up to a value.

use std::borrow::Cow;

use super::super::super::json::index;
use super::super::super::uuid::hyphenated;
use super::super::decimal::decimal_text;
use super::{AvroSchema, AvroType, BytesText};
use crate::dedupe::varint;

/// The bytes that are left. Every function returns `None` when they do not match the schema.
pub(super) struct Input<'d> {
    rest: &'d [u8],
}

/// A record, array or map whose values are being skipped.
enum OpenValue<'s> {
    Fields(std::slice::Iter<'s, (String, usize)>),
    Items { of: usize, left: u64, has_keys: bool },
}

/// The start of a block of an array or map.
enum BlockStart {
    End,
    Items(u64),
    /// The number of items, and of their bytes.
    Sized(u64, u64),
}

impl<'d> Input<'d> {
    pub fn new(rest: &'d [u8]) -> Self {
        Self { rest }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn find(&mut self, schema: &AvroSchema, path: &[String]) -> Option<Cow<'d, [u8]>> {
        let (mut place, is_name, mut path) = (schema.root, path.is_empty(), path.iter());
        loop {
            place = match schema.of(place)? {
                AvroType::Union(branches) => self.branch(branches)?,
                _ if is_name => return schema.names.get(&place).map(|name| name.clone().into_bytes().into()),
                AvroType::Record(fields) => {
                    let name = path.next()?;
                    let at = fields.iter().position(|(field, _)| field == name)?;
                    for (_, before) in fields.iter().take(at) {
                        self.skip(schema, *before)?;
                    }
                    fields.get(at)?.1
                }
                AvroType::Array(items) => self.item(schema, *items, index(path.next()?)? as u64)?,
                AvroType::Map(values) => self.entry(schema, *values, path.next()?)?,
                scalar => {
                    return path.next().is_none().then(|| self.scalar(scalar))?.filter(|it| !it.is_empty());
                }
            };
        }
    }

    /// Moves to the item with this index. Returns its type.
    fn item(&mut self, schema: &AvroSchema, of: usize, mut index: u64) -> Option<usize> {
        loop {
            let count = match self.block()? {
                BlockStart::End => return None,
                BlockStart::Sized(count, bytes) if index >= count => {
                    self.take(bytes)?;
                    index -= count;
                    continue;
                }
                BlockStart::Items(count) | BlockStart::Sized(count, _) => count,
            };
            if !schema.is_empty(of) {
                for _ in 0..index.min(count) {
                    self.skip(schema, of)?;
                }
            }
            if index < count {
                return Some(of);
            }
            index -= count;
        }
    }

    /// Moves to the value of the first entry with this key. Returns its type.
    fn entry(&mut self, schema: &AvroSchema, of: usize, key: &str) -> Option<usize> {
        loop {
            let (BlockStart::Items(count) | BlockStart::Sized(count, _)) = self.block()? else { return None };
            for _ in 0..count {
                if self.bytes()? == key.as_bytes() {
                    return Some(of);
                }
                self.skip(schema, of)?;
            }
        }
    }

    /// Skips a value. It does not recurse, so a value can be as deep as it is long.
    pub fn skip(&mut self, schema: &AvroSchema, place: usize) -> Option<()> {
        let mut open = Vec::new();
        self.begin(schema, place, &mut open)?;
        while let Some(innermost) = open.last_mut() {
            let next = match innermost {
                OpenValue::Fields(fields) => fields.next().map(|(_, of)| *of),
                OpenValue::Items { of, left, has_keys } => {
                    let of = *of;
                    if *left == 0 {
                        match self.block()? {
                            BlockStart::End => drop(open.pop()),
                            BlockStart::Sized(_, bytes) => drop(self.take(bytes)?),
                            BlockStart::Items(_) if !*has_keys && schema.is_empty(of) => {}
                            BlockStart::Items(count) => *left = count,
                        }
                        continue;
                    }
                    *left -= 1;
                    if *has_keys {
                        self.bytes()?;
                    }
                    Some(of)
                }
            };
            match next {
                Some(of) => self.begin(schema, of, &mut open)?,
                None => drop(open.pop()),
            }
        }
        Some(())
    }

    /// Skips a scalar, or opens a value that contains others.
    fn begin<'s>(
        &mut self,
        schema: &'s AvroSchema,
        mut place: usize,
        open: &mut Vec<OpenValue<'s>>,
    ) -> Option<()> {
        loop {
            let length = match schema.of(place)? {
                AvroType::Union(branches) => {
                    place = self.branch(branches)?;
                    continue;
                }
                AvroType::Null => 0,
                AvroType::Boolean => return self.boolean().map(drop),
                AvroType::Int | AvroType::Long | AvroType::Enum(_) => return self.long().map(drop),
                AvroType::Float => 4,
                AvroType::Double => 8,
                AvroType::Fixed(size, _) => *size as u64,
                AvroType::Bytes(_) | AvroType::String => return self.bytes().map(drop),
                AvroType::Record(_) if schema.is_empty(place) => 0,
                AvroType::Record(fields) => {
                    open.push(OpenValue::Fields(fields.iter()));
                    0
                }
                AvroType::Array(of) => {
                    open.push(OpenValue::Items { of: *of, left: 0, has_keys: false });
                    0
                }
                AvroType::Map(of) => {
                    open.push(OpenValue::Items { of: *of, left: 0, has_keys: true });
                    0
                }
            };
            return self.take(length).map(drop);
        }
    }

    fn scalar(&mut self, of: &AvroType) -> Option<Cow<'d, [u8]>> {
        let text = match of {
            AvroType::Null
            | AvroType::Array(_)
            | AvroType::Map(_)
            | AvroType::Union(_)
            | AvroType::Record(_) => return None,
            AvroType::String => {
                let bytes = self.bytes()?;
                return std::str::from_utf8(bytes).ok().map(|_| Cow::Borrowed(bytes));
            }
            AvroType::Enum(symbols) => {
                let symbol = symbols.get(usize::try_from(self.long()?).ok()?)?;
                return Some(Cow::Owned(symbol.clone().into_bytes()));
            }
            AvroType::Bytes(text) => {
                let bytes = self.bytes()?;
                return text_of_bytes(bytes, *text);
            }
            AvroType::Fixed(size, text) => return text_of_bytes(self.take(*size as u64)?, *text),
            AvroType::Boolean => self.boolean()?.to_string(),
            AvroType::Int => i32::try_from(self.long()?).ok()?.to_string(),
            AvroType::Long => self.long()?.to_string(),
            AvroType::Float => f32::from_le_bytes(*self.array()?).to_string(),
            AvroType::Double => f64::from_le_bytes(*self.array()?).to_string(),
        };
        Some(Cow::Owned(text.into_bytes()))
    }

    fn branch(&mut self, branches: &[usize]) -> Option<usize> {
        branches.get(usize::try_from(self.long()?).ok()?).copied()
    }

    fn block(&mut self) -> Option<BlockStart> {
        Some(match self.long()? {
            0 => BlockStart::End,
            count @ 1.. => BlockStart::Items(count.unsigned_abs()),
            count => BlockStart::Sized(count.unsigned_abs(), u64::try_from(self.long()?).ok()?),
        })
    }

    fn bytes(&mut self) -> Option<&'d [u8]> {
        let length = u64::try_from(self.long()?).ok()?;
        self.take(length)
    }

    fn boolean(&mut self) -> Option<bool> {
        match self.array::<1>()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn long(&mut self) -> Option<i64> {
        varint::take(&mut self.rest).map(varint::unzigzag)
    }

    fn take(&mut self, length: u64) -> Option<&'d [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<&'d [u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(array)
    }
}

fn text_of_bytes(bytes: &[u8], text: BytesText) -> Option<Cow<'_, [u8]>> {
    Some(match text {
        BytesText::Raw => Cow::Borrowed(bytes),
        BytesText::Decimal(scale) => Cow::Owned(decimal_text(bytes, scale)?.into_bytes()),
        BytesText::Uuid => Cow::Owned(hyphenated(bytes.try_into().ok()?).to_vec()),
    })
}
