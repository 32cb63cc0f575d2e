//! The wire format of Protobuf. The library only compiles the schemas: it would reject a message for any of its fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::str::Utf8Error;

use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};
use protox::prost_reflect::{DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};

use super::depth::depth;

/// The name of a schema among the files that it imports.
const SCHEMA: &str = "dedupd-audit.proto";

#[derive(Debug)]
pub(super) struct Protobuf {
    file: FileDescriptor,
}

struct Files(BTreeMap<String, String>);

impl FileResolver for Files {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.0.get(name) {
            Some(text) if depth(text) > 100 => Err(protox::Error::new(format!("{name} has too many levels"))),
            Some(text) => File::from_source(name, text),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// A field as it is on the wire.
#[derive(Clone, Copy)]
enum Piece<'d> {
    Number(u64),
    Eight([u8; 8]),
    Bytes(&'d [u8]),
    Group,
    Four([u8; 4]),
}

type Pieces<'d> = Vec<(u32, Piece<'d>)>;

impl Protobuf {
    pub fn of_text(text: &str, references: &[(String, String)]) -> Result<Self, String> {
        let mut files: BTreeMap<_, _> = references.iter().cloned().collect();
        files.insert(SCHEMA.to_owned(), text.to_owned());
        Self::compile(Files(files), SCHEMA)
    }

    pub fn of_file(path: &Path) -> Result<Self, String> {
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("it has no name")?;
        Self::compile(IncludeFileResolver::new(directory.to_owned()), name)
    }

    pub fn of_descriptors(bytes: &[u8]) -> Result<Self, String> {
        let pool = DescriptorPool::decode(bytes).map_err(|error| error.to_string())?;
        let file = pool.files().last().ok_or("it has no files")?;
        Ok(Self { file })
    }

    fn compile(files: impl FileResolver + 'static, name: &str) -> Result<Self, String> {
        let mut resolver = ChainFileResolver::new();
        resolver.add(files);
        resolver.add(GoogleFileResolver::new());
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.include_imports(true).open_file(name).map_err(|error| error.to_string())?;
        let file = compiler.descriptor_pool().get_file_by_name(name).ok_or("it was not compiled")?;
        Ok(Self { file })
    }

    /// The scalar at this path in the first message of the file.
    pub fn find<'d>(&self, document: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        find(&self.file.messages().next()?, &pieces(document)?, path).filter(|it| !it.is_empty())
    }

    /// The same in a document that begins with the indexes of its message.
    pub fn find_indexed<'d>(&self, mut document: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        let mut indexes = indexes(&mut document)?.into_iter();
        let mut message = self.file.messages().nth(indexes.next().unwrap_or(0))?;
        for index in indexes {
            let nested = message.child_messages().filter(|child| !child.is_map_entry()).nth(index);
            message = nested?;
        }
        find(&message, &pieces(document)?, path).filter(|it| !it.is_empty())
    }
}

/// The indexes before a message; none stand for the first message.
fn indexes(at: &mut &[u8]) -> Option<Vec<usize>> {
    let count = u64::try_from(signed(varint(at)?)).ok()?;
    (0..count).map(|_| usize::try_from(signed(varint(at)?)).ok()).collect()
}

fn find<'d>(message: &MessageDescriptor, pieces: &Pieces<'d>, path: &[String]) -> Option<Cow<'d, [u8]>> {
    let (name, path) = path.split_first()?;
    let field = message.get_field_by_name(name).filter(|field| !field.is_group())?;
    if field.is_map() {
        let (key, path) = path.split_first()?;
        let entry = entry(&field, pieces, key)?;
        let Kind::Message(message) = field.kind() else { return None };
        let value = message.get_field(2)?;
        return single(&message, &value, &entry, path);
    }
    if field.is_list() {
        let (token, path) = path.split_first()?;
        return element(&field, pieces, token, path);
    }
    single(message, &field, pieces, path)
}

/// A field that occurs once: its last occurrence, unless another field of its `oneof` follows.
fn single<'d>(
    message: &MessageDescriptor,
    field: &FieldDescriptor,
    all: &Pieces<'d>,
    path: &[String],
) -> Option<Cow<'d, [u8]>> {
    let siblings: Vec<u32> = field
        .containing_oneof()
        .into_iter()
        .flat_map(|it| it.fields().map(|it| it.number()).collect::<Vec<_>>())
        .collect();
    // Groups are unknown fields.
    let is_group = |number| message.get_field(number).is_some_and(|it| it.is_group());
    let counted = all.iter().rev().take_while(|(number, _)| {
        *number == field.number() || !siblings.contains(number) || is_group(*number)
    });
    let mut own: Vec<Piece<'d>> =
        counted.filter(|(number, _)| *number == field.number()).map(|(_, it)| *it).collect();
    own.reverse();
    if let Kind::Message(inner) = field.kind() {
        let mut merged = Vec::new();
        for piece in own {
            if let Piece::Bytes(bytes) = piece {
                merged.push(bytes);
            }
        }
        if path.is_empty() {
            return None;
        }
        let merged: Option<Vec<_>> = merged.into_iter().map(pieces).collect();
        return find(&inner, &merged?.concat(), path);
    }
    // A string that is not UTF-8 spoils the message, also where a later one replaces it.
    let of_field = all.iter().filter(|(number, _)| *number == field.number());
    let texts: Result<Vec<_>, _> = of_field.map(|(_, piece)| text(&field.kind(), *piece)).collect();
    texts.ok()?;
    let last = own.into_iter().filter_map(|piece| text(&field.kind(), piece).ok().flatten()).next_back();
    last.filter(|text| path.is_empty() && (field.supports_presence() || !is_default(&field.kind(), text)))
}

/// Whether this is the text of the default of a type. Of a field without presence, an encoder may write it or not.
fn is_default(kind: &Kind, text: &[u8]) -> bool {
    match kind {
        Kind::String | Kind::Bytes => text.is_empty(),
        Kind::Bool => text == b"false",
        Kind::Enum(names) => names.get_value(0).is_some_and(|value| value.name().as_bytes() == text),
        _ => text == b"0",
    }
}

fn element<'d>(
    field: &FieldDescriptor,
    all: &Pieces<'d>,
    token: &str,
    path: &[String],
) -> Option<Cow<'d, [u8]>> {
    let index: usize = token.parse().ok().filter(|index: &usize| index.to_string() == token)?;
    let own = all.iter().filter(|(number, _)| *number == field.number()).map(|(_, piece)| *piece);
    if let Kind::Message(message) = field.kind() {
        let mut messages =
            own.filter_map(|piece| if let Piece::Bytes(bytes) = piece { Some(bytes) } else { None });
        return find(&message, &pieces(messages.nth(index)?)?, path);
    }
    let mut texts = Vec::new();
    for piece in own {
        match (field.kind(), piece) {
            (Kind::String | Kind::Bytes, _) => texts.extend(text(&field.kind(), piece).ok()?),
            (kind, Piece::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    let next = match kind {
                        Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => Piece::Four(array(&mut packed)?),
                        Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => Piece::Eight(array(&mut packed)?),
                        _ => Piece::Number(varint(&mut packed)?),
                    };
                    texts.extend(text(&kind, next).ok()?);
                }
            }
            (kind, piece) => texts.extend(text(&kind, piece).ok()?),
        }
    }
    texts.into_iter().nth(index).filter(|_| path.is_empty())
}

/// The last entry of a map with this key.
fn entry<'d>(field: &FieldDescriptor, all: &Pieces<'d>, key: &str) -> Option<Pieces<'d>> {
    let Kind::Message(message) = field.kind() else { return None };
    let of_key = message.get_field(1)?.kind();
    let absent = match of_key {
        Kind::String => "",
        Kind::Bool => "false",
        _ => "0",
    };
    let mut found = None;
    for (number, piece) in all {
        if let Piece::Bytes(bytes) = piece
            && *number == field.number()
        {
            let entry = pieces(bytes)?;
            let mut own = Cow::Borrowed(absent.as_bytes());
            for (number, piece) in &entry {
                if *number == 1
                    && let Some(text) = text(&of_key, *piece).ok()?
                {
                    own = text;
                }
            }
            if *own == *key.as_bytes() {
                found = Some(entry);
            }
        }
    }
    found
}

/// No text: a value of another wire type, which counts as an unknown field. The error is a string that is not UTF-8.
fn text<'d>(kind: &Kind, piece: Piece<'d>) -> Result<Option<Cow<'d, [u8]>>, Utf8Error> {
    let text = match (kind, piece) {
        (Kind::String, Piece::Bytes(bytes)) => {
            return std::str::from_utf8(bytes).map(|text| Some(text.as_bytes().into()));
        }
        (Kind::Bytes, Piece::Bytes(bytes)) => return Ok(Some(bytes.into())),
        (Kind::Bool, Piece::Number(number)) => (number > 0).to_string(),
        (Kind::Uint32, Piece::Number(number)) => (number % (1 << 32)).to_string(),
        (Kind::Uint64, Piece::Number(number)) => number.to_string(),
        (Kind::Int32, Piece::Number(number)) => half(number).to_string(),
        (Kind::Int64, Piece::Number(number)) => number.cast_signed().to_string(),
        (Kind::Sint32, Piece::Number(number)) => signed(number % (1 << 32)).to_string(),
        (Kind::Sint64, Piece::Number(number)) => signed(number).to_string(),
        (Kind::Enum(names), Piece::Number(number)) => {
            let number = half(number);
            names.get_value(number).map_or_else(|| number.to_string(), |value| value.name().to_owned())
        }
        (Kind::Fixed32, Piece::Four(bytes)) => u32::from_le_bytes(bytes).to_string(),
        (Kind::Sfixed32, Piece::Four(bytes)) => i32::from_le_bytes(bytes).to_string(),
        (Kind::Float, Piece::Four(bytes)) => f32::from_le_bytes(bytes).to_string(),
        (Kind::Fixed64, Piece::Eight(bytes)) => u64::from_le_bytes(bytes).to_string(),
        (Kind::Sfixed64, Piece::Eight(bytes)) => i64::from_le_bytes(bytes).to_string(),
        (Kind::Double, Piece::Eight(bytes)) => f64::from_le_bytes(bytes).to_string(),
        _ => return Ok(None),
    };
    Ok(Some(text.into_bytes().into()))
}

fn half(number: u64) -> i32 {
    i32::from_le_bytes(u32::try_from(number % (1 << 32)).unwrap_or(0).to_le_bytes())
}

fn signed(number: u64) -> i64 {
    let half = (number / 2).cast_signed();
    if number.is_multiple_of(2) { half } else { -1 - half }
}

/// Whether a field can have this number.
pub fn is_number(token: &str) -> bool {
    let number = token.parse::<u32>().ok().filter(|number| number.to_string() == token);
    number.is_some_and(|number| (1..=536_870_911).contains(&number))
}

/// The value at these field numbers, without a schema.
pub fn untyped<'d>(mut document: &'d [u8], numbers: &[String]) -> Option<Cow<'d, [u8]>> {
    if let Some((_, rest)) = super::behind_prefix(document) {
        document = rest;
        indexes(&mut document)?;
    }
    let (last, way) = numbers.split_last()?;
    let mut here = pieces(document)?;
    let own = |here: &Pieces<'d>, number: &String| -> Option<Vec<Piece<'d>>> {
        let number: u32 = number.parse().ok()?;
        Some(here.iter().filter(|(at, _)| *at == number).map(|(_, piece)| *piece).collect())
    };
    for step in way {
        let messages = own(&here, step)?.into_iter().filter_map(|piece| match piece {
            Piece::Bytes(bytes) => Some(pieces(bytes)),
            _ => None,
        });
        here = messages.collect::<Option<Vec<_>>>()?.concat();
    }
    let found = own(&here, last)?.into_iter().rfind(|piece| !matches!(piece, Piece::Group))?;
    let text = match found {
        Piece::Bytes(bytes) => return (!bytes.is_empty()).then_some(bytes.into()),
        Piece::Number(number) => number.cast_signed().to_string(),
        Piece::Eight(bytes) => u64::from_le_bytes(bytes).to_string(),
        Piece::Four(bytes) => u32::from_le_bytes(bytes).to_string(),
        Piece::Group => return None,
    };
    Some(text.into_bytes().into())
}

/// The fields of a message; `None` when the bytes are none.
fn pieces(mut at: &[u8]) -> Option<Pieces<'_>> {
    let (mut all, mut groups) = (Vec::new(), Vec::new());
    while !at.is_empty() {
        let key = varint(&mut at)?;
        let number = u32::try_from(key / 8).ok().filter(|number| (1..1 << 29).contains(number))?;
        let piece = match key % 8 {
            0 => Piece::Number(varint(&mut at)?),
            1 => Piece::Eight(array(&mut at)?),
            2 => {
                let size = usize::try_from(varint(&mut at)?).ok()?;
                let (bytes, rest) = at.split_at_checked(size)?;
                at = rest;
                Piece::Bytes(bytes)
            }
            3 if groups.len() < 100 => {
                groups.push(number);
                continue;
            }
            4 if groups.pop() == Some(number) => Piece::Group,
            5 => Piece::Four(array(&mut at)?),
            _ => return None,
        };
        if groups.is_empty() {
            all.push((number, piece));
        }
    }
    groups.is_empty().then_some(all)
}

fn array<const N: usize>(at: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(*array)
}

/// At most ten bytes, of which the last has one bit.
pub fn varint(at: &mut &[u8]) -> Option<u64> {
    let end = at.iter().position(|byte| *byte < 0x80)?;
    let (number, rest) = at.split_at_checked(end + 1)?;
    *at = rest;
    let mut value: u128 = 0;
    if number.len() > 10 {
        return None;
    }
    for byte in number.iter().rev() {
        value = value * 128 + u128::from(byte & 0x7f);
    }
    u64::try_from(value).ok()
}
