//! Protobuf, read with `protox`, `prost` and `prost-reflect`: they compile the schemas, separate the fields of a message and decode
//! scalars. Only what is on the way to the id is decoded. `DynamicMessage` would decode whole messages: one with a field of another
//! wire type would have no id here, but one in the service, and its copies would count as lost.

use std::collections::BTreeMap;
use std::path::Path;

use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};
use protox::prost_reflect::prost::DecodeError;
use protox::prost_reflect::prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, fixed32, fixed64, int64, sint64, skip_field,
};
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, Value,
};

use super::depth::depth;
use super::frame::Message;

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
struct Piece<'d> {
    number: u32,
    wire_type: WireType,
    whole: &'d [u8],
    /// Without its key, and without its length.
    content: &'d [u8],
}

type Pieces<'d> = Vec<Piece<'d>>;

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

    /// The scalar at this path in the first message of the file; the full name of the message if the path is empty.
    pub fn find(&self, document: &[u8], path: &[String]) -> Option<Vec<u8>> {
        found(&self.file.messages().next()?, document, path)
    }

    /// The same in the message with this name.
    pub fn find_named(&self, name: &Message<'_>, document: &[u8], path: &[String]) -> Option<Vec<u8>> {
        let message = match name {
            Message::Top(name) => self.file.messages().find(|it| it.name().as_bytes() == *name)?,
            Message::Alphabetical(at) => {
                let mut all: Vec<MessageDescriptor> = self.file.messages().collect();
                let mut next = 0;
                while let Some(inner) = all.get(next).map(|it| it.child_messages().collect::<Vec<_>>()) {
                    all.extend(inner);
                    next += 1;
                }
                all.sort_by(|one, other| one.full_name().cmp(other.full_name()));
                all.into_iter().nth(*at)?
            }
            Message::Indexes(indexes) => {
                let mut indexes = indexes.iter();
                let mut message = self.file.messages().nth(indexes.next().copied().unwrap_or(0))?;
                for index in indexes {
                    let nested = message.child_messages().filter(|child| !child.is_map_entry()).nth(*index);
                    message = nested?;
                }
                message
            }
        };
        found(&message, document, path)
    }
}

fn found(message: &MessageDescriptor, document: &[u8], path: &[String]) -> Option<Vec<u8>> {
    if path.is_empty() {
        return Some(message.full_name().as_bytes().to_vec());
    }
    find(message, &pieces(document)?, path).filter(|it| !it.is_empty())
}

/// The indexes before a message; none stand for the first message.
pub(super) fn indexes(at: &mut &[u8]) -> Option<Vec<usize>> {
    let count = u64::try_from(signed(at)?).ok()?;
    (0..count).map(|_| usize::try_from(signed(at)?).ok()).collect()
}

fn find(message: &MessageDescriptor, pieces: &[Piece<'_>], path: &[String]) -> Option<Vec<u8>> {
    let (name, path) = path.split_first()?;
    let field = message.get_field_by_name(name).filter(|field| !field.is_group())?;
    if field.is_map() {
        let (key, path) = path.split_first()?;
        let entry = entry(&field, pieces, key)?;
        return single(&field.kind().as_message()?.map_entry_value_field(), &entry, path);
    }
    if field.is_list() {
        let (token, path) = path.split_first()?;
        return element(&field, pieces, token, path);
    }
    single(&field, pieces, path)
}

/// A field that occurs once: its last occurrence, unless another field of its `oneof` follows.
fn single(field: &FieldDescriptor, all: &[Piece<'_>], path: &[String]) -> Option<Vec<u8>> {
    let siblings: Vec<FieldDescriptor> =
        field.containing_oneof().into_iter().flat_map(|it| it.fields().collect::<Vec<_>>()).collect();
    // Groups are unknown fields.
    let is_other = |other: &FieldDescriptor, piece: &Piece<'_>| {
        other.number() == piece.number && !other.is_group() && other != field
    };
    let removal = all.iter().rposition(|piece| siblings.iter().any(|other| is_other(other, piece)));
    let own = all.get(removal.map_or(0, |at| at + 1)..)?;
    if let Kind::Message(inner) = field.kind() {
        let merged: Option<Vec<_>> = contents(field, own).map(pieces).collect();
        return find(&inner, &merged?.concat(), path);
    }
    // A string that is not UTF-8 spoils the message, also where a later one replaces it.
    if removal.is_some() {
        decoded(field, all).ok()?;
    }
    let text = decoded(field, own).ok()?.and_then(|value| text(&field.kind(), value));
    // Of a field without presence, an encoder may write the default or not.
    let default = text_of_default(&field.kind());
    text.filter(|text| path.is_empty() && (field.supports_presence() || Some(text) != default.as_ref()))
}

fn element(field: &FieldDescriptor, all: &[Piece<'_>], token: &str, path: &[String]) -> Option<Vec<u8>> {
    let index: usize = token.parse().ok().filter(|index: &usize| index.to_string() == token)?;
    if let Kind::Message(message) = field.kind() {
        return find(&message, &pieces(contents(field, all).nth(index)?)?, path);
    }
    let Value::List(items) = decoded(field, all).ok()?? else { return None };
    text(&field.kind(), items.into_iter().nth(index)?).filter(|_| path.is_empty())
}

/// The last entry of a map with this key.
fn entry<'d>(field: &FieldDescriptor, all: &[Piece<'d>], key: &str) -> Option<Pieces<'d>> {
    let of_key = field.kind().as_message()?.map_entry_key_field();
    let mut found = None;
    for content in contents(field, all) {
        let entry = pieces(content)?;
        let own = match decoded(&of_key, &entry).ok()? {
            Some(own) => text(&of_key.kind(), own),
            None => text_of_default(&of_key.kind()),
        };
        if own? == key.as_bytes() {
            found = Some(entry);
        }
    }
    found
}

/// The messages in a field, in order. A value of another wire type counts as an unknown field.
fn contents<'p, 'd>(
    field: &FieldDescriptor,
    all: &'p [Piece<'d>],
) -> impl Iterator<Item = &'d [u8]> + use<'p, 'd> {
    let number = field.number();
    let own =
        move |piece: &&Piece<'_>| piece.number == number && piece.wire_type == WireType::LengthDelimited;
    all.iter().filter(own).map(|piece| piece.content)
}

/// The value of a scalar field, or a list of scalars; nothing if it does not occur. A value of another wire type counts as an
/// unknown field.
fn decoded(field: &FieldDescriptor, all: &[Piece<'_>]) -> Result<Option<Value>, DecodeError> {
    let of_kind = field.kind().wire_type();
    let fits = |it: WireType| it == of_kind || (field.is_list() && it == WireType::LengthDelimited);
    let own = all.iter().filter(|piece| piece.number == field.number() && fits(piece.wire_type));
    let own: Vec<&[u8]> = own.map(|piece| piece.whole).collect();
    let message = DynamicMessage::decode(field.parent_message().clone(), &*own.concat())?;
    Ok((!own.is_empty()).then(|| message.get_field(field).into_owned()))
}

fn text_of_default(kind: &Kind) -> Option<Vec<u8>> {
    text(kind, kind.default_value())
}

/// The text of a scalar.
fn text(kind: &Kind, value: Value) -> Option<Vec<u8>> {
    let text = match value {
        Value::Bool(it) => it.to_string(),
        Value::I32(it) => it.to_string(),
        Value::I64(it) => it.to_string(),
        Value::U32(it) => it.to_string(),
        Value::U64(it) => it.to_string(),
        Value::F32(it) => it.to_string(),
        Value::F64(it) => it.to_string(),
        Value::EnumNumber(it) => {
            let named = kind.as_enum().and_then(|names| names.get_value(it));
            named.map_or_else(|| it.to_string(), |value| value.name().to_owned())
        }
        Value::String(it) => it,
        Value::Bytes(it) => return Some(it.to_vec()),
        Value::Message(_) | Value::List(_) | Value::Map(_) => return None,
    };
    Some(text.into_bytes())
}

/// Whether a field can have this number.
pub fn is_number(token: &str) -> bool {
    let number = token.parse::<u32>().ok().filter(|number| number.to_string() == token);
    number.is_some_and(|number| (1..=536_870_911).contains(&number))
}

/// The value at these field numbers, without a schema.
pub fn untyped(document: &[u8], numbers: &[String]) -> Option<Vec<u8>> {
    let (last, way) = numbers.split_last()?;
    let mut here = pieces(document)?;
    for step in way {
        let step: u32 = step.parse().ok()?;
        let own = here.iter().filter(|it| it.number == step && it.wire_type == WireType::LengthDelimited);
        let inner: Option<Vec<_>> = own.map(|piece| pieces(piece.content)).collect();
        here = inner?.concat();
    }
    let last: u32 = last.parse().ok()?;
    let found = here.into_iter().rfind(|it| it.number == last && it.wire_type != WireType::EndGroup)?;
    let (of, mut at, context) = (found.wire_type, found.content, DecodeContext::default());
    let (mut signed, mut eight, mut four) = (0, 0, 0);
    let text = match of {
        WireType::Varint => int64::merge(of, &mut signed, &mut at, context).map(|()| signed.to_string()),
        WireType::SixtyFourBit => {
            fixed64::merge(of, &mut eight, &mut at, context).map(|()| eight.to_string())
        }
        WireType::ThirtyTwoBit => fixed32::merge(of, &mut four, &mut at, context).map(|()| four.to_string()),
        _ => return Some(at.to_vec()).filter(|it| !it.is_empty()),
    };
    text.ok().map(String::into_bytes)
}

/// The fields of a message; `None` when the bytes are none.
fn pieces(mut at: &[u8]) -> Option<Pieces<'_>> {
    let (mut all, mut groups) = (Vec::new(), Vec::new());
    while !at.is_empty() {
        let start = at;
        let (number, wire_type) = decode_key(&mut at).ok()?;
        let mut content = at;
        match wire_type {
            WireType::StartGroup if groups.len() < 100 => {
                groups.push(number);
                continue;
            }
            WireType::EndGroup if groups.pop() == Some(number) => {}
            WireType::StartGroup | WireType::EndGroup => return None,
            _ => skip_field(wire_type, number, &mut at, DecodeContext::default()).ok()?,
        }
        if wire_type == WireType::LengthDelimited {
            decode_varint(&mut content).ok()?;
        }
        if groups.is_empty() {
            let until = |from: &'_ [u8]| from.len().checked_sub(at.len());
            let (whole, content) = (start.get(..until(start)?)?, content.get(..until(content)?)?);
            all.push(Piece { number, wire_type, whole, content });
        }
    }
    groups.is_empty().then_some(all)
}

/// A number without a sign.
pub fn unsigned(at: &mut &[u8]) -> Option<u64> {
    decode_varint(at).ok()
}

/// A signed number in zigzag encoding.
pub fn signed(at: &mut &[u8]) -> Option<i64> {
    let mut number = 0;
    sint64::merge(WireType::Varint, &mut number, at, DecodeContext::default()).ok()?;
    Some(number)
}
