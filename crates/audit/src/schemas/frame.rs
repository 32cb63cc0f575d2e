//! What names the schema of a document: bytes before it, or a header.

use std::borrow::Cow;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use super::protobuf::unsigned;
use crate::record::Fields;

/// Most bytes of a document that is compressed by the serializer of AWS Glue.
const UNPACKED_MAX: usize = 16 << 20;

/// The bytes before the documents of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// A zero byte and 4 bytes.
    #[default]
    Confluent,
    /// The byte 3, the compression and a UUID.
    Glue,
    /// A zero byte and a global id of 8 bytes.
    ApicurioGlobal,
    /// A zero byte and a content id of 8 bytes.
    ApicurioContent,
    /// C3 01 and the fingerprint of an Avro schema.
    SingleObject,
}

/// What names the schema of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchemaName {
    /// An id of 4 bytes.
    Id(u32),
    /// A GUID of Confluent, or a UUID of AWS Glue.
    Guid(u128),
    /// A global id of Apicurio.
    Global(u64),
    /// A content id of Apicurio.
    Content(u64),
    /// CRC-64-AVRO of a schema.
    Fingerprint(u64),
}

impl SchemaName {
    /// How files with the schema are named, without their ending.
    pub(super) fn file_stem(self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::Global(id) | Self::Content(id) => id.to_string(),
            Self::Fingerprint(id) => format!("{id:016x}"),
            Self::Guid(id) => {
                let digits = format!("{id:032x}");
                let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| digits.get(group));
                groups.map(Option::unwrap_or_default).join("-")
            }
        }
    }
}

/// How a Protobuf document names its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message<'d> {
    /// The place of each message inside of the previous one.
    Indexes(Vec<usize>),
    /// The place among all messages of the file in the order of their full names.
    Alphabetical(usize),
    /// A message at the top of the file.
    Top(&'d [u8]),
}

/// Where a Protobuf document names its message.
#[derive(Debug, Clone, Copy)]
enum MessageAt<'d> {
    Nowhere,
    IndexesBefore,
    IndexesIn(&'d [u8]),
    NumberBefore,
    RefBefore,
    /// A header, and maybe the same name before the message.
    Header(&'d [u8]),
}

/// A document, its schema, and its message.
#[derive(Debug)]
pub(super) struct Framed<'d> {
    pub schema: SchemaName,
    message: MessageAt<'d>,
    is_compressed: bool,
    bytes: &'d [u8],
}

impl<'d> Framed<'d> {
    /// The document itself; nothing if it cannot be decompressed.
    pub fn document(&self) -> Option<Cow<'d, [u8]>> {
        if self.is_compressed {
            decompress_to_vec_zlib_with_limit(self.bytes, UNPACKED_MAX).ok().map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.bytes))
        }
    }

    /// The name of the message, and the message itself, in such a document.
    pub fn message<'a>(&'a self, document: &'a [u8]) -> Option<(Message<'a>, &'a [u8])> {
        let mut at = document;
        let message = match self.message {
            MessageAt::Nowhere => return None,
            MessageAt::IndexesBefore => Message::Indexes(super::protobuf::indexes(&mut at)?),
            MessageAt::IndexesIn(mut header) => Message::Indexes(super::protobuf::indexes(&mut header)?),
            MessageAt::NumberBefore => Message::Alphabetical(usize::try_from(unsigned(&mut at)?).ok()?),
            MessageAt::RefBefore => Message::Top(take_ref(&mut at)?),
            MessageAt::Header(name) => {
                if take_ref(&mut at) != Some(name) {
                    at = document;
                }
                Message::Top(name)
            }
        };
        Some((message, at))
    }
}

/// A short message with a name as its field 1, behind its length.
fn take_ref<'d>(at: &mut &'d [u8]) -> Option<&'d [u8]> {
    let (head, rest) = at.split_first_chunk::<3>()?;
    let size = head[2];
    if size > 125 || *head != [size + 2, 0x0a, size] {
        return None;
    }
    let (name, rest) = rest.split_at_checked(usize::from(size))?;
    *at = rest;
    Some(name)
}

impl Framing {
    /// The document behind the bytes that name its schema.
    pub(super) fn of(self, document: &[u8]) -> Option<Framed<'_>> {
        let framed = |schema, message, bytes| Framed { schema, message, is_compressed: false, bytes };
        match (self, document) {
            (Self::Confluent, [0, rest @ ..]) => {
                let (id, bytes) = rest.split_first_chunk()?;
                Some(framed(SchemaName::Id(u32::from_be_bytes(*id)), MessageAt::IndexesBefore, bytes))
            }
            (Self::Glue, [3, compression @ (0 | 5), rest @ ..]) => {
                let (id, bytes) = rest.split_first_chunk()?;
                let schema = SchemaName::Guid(u128::from_be_bytes(*id));
                let is_compressed = *compression == 5;
                Some(Framed { schema, message: MessageAt::NumberBefore, is_compressed, bytes })
            }
            (Self::ApicurioGlobal | Self::ApicurioContent, [0, rest @ ..]) => {
                let (id, bytes) = rest.split_first_chunk()?;
                let id = u64::from_be_bytes(*id);
                let is_global = self == Self::ApicurioGlobal;
                let schema = if is_global { SchemaName::Global(id) } else { SchemaName::Content(id) };
                Some(framed(schema, MessageAt::RefBefore, bytes))
            }
            (Self::SingleObject, [0xc3, 0x01, rest @ ..]) => {
                let (id, bytes) = rest.split_first_chunk()?;
                Some(framed(SchemaName::Fingerprint(u64::from_le_bytes(*id)), MessageAt::Nowhere, bytes))
            }
            _ => None,
        }
    }

    /// The same in a record, where a header takes precedence.
    pub(super) fn in_record<'d>(
        self,
        document: &'d [u8],
        is_key: bool,
        fields: &Fields<'d>,
    ) -> Option<Framed<'d>> {
        let part = if is_key { "key" } else { "value" };
        let header = |name: &str| {
            let found = fields.headers.iter().rfind(|(other, _)| *other == name.as_bytes());
            found.and_then(|(_, value)| *value)
        };
        let framed = |schema, message| Framed { schema, message, is_compressed: false, bytes: document };
        if let Some(name) = header(&format!("__{part}_schema_id")) {
            let (kind, rest) = name.split_first()?;
            let (schema, indexes) = match kind {
                0 => {
                    rest.split_first_chunk().map(|(id, rest)| (SchemaName::Id(u32::from_be_bytes(*id)), rest))
                }
                1 => rest
                    .split_first_chunk()
                    .map(|(id, rest)| (SchemaName::Guid(u128::from_be_bytes(*id)), rest)),
                _ => None,
            }?;
            return Some(framed(schema, MessageAt::IndexesIn(indexes)));
        }
        let number = |id: &[u8]| Some(u64::from_be_bytes(id.try_into().ok()?));
        let schema = match (
            header(&format!("apicurio.{part}.contentId")),
            header(&format!("apicurio.{part}.globalId")),
        ) {
            (Some(id), _) => SchemaName::Content(number(id)?),
            (None, Some(id)) => SchemaName::Global(number(id)?),
            (None, None) => return self.of(document),
        };
        let name = header(if is_key { "apicurio.protobuf.type.key" } else { "apicurio.protobuf.type" });
        Some(framed(schema, name.map_or(MessageAt::Nowhere, MessageAt::Header)))
    }

    /// The same where no schema is needed, so that the document can be without a name of it.
    pub(super) fn without_schema<'d>(
        self,
        document: &'d [u8],
        is_key: bool,
        fields: &Fields<'d>,
    ) -> Option<Framed<'d>> {
        let is_apicurio = matches!(self, Self::ApicurioGlobal | Self::ApicurioContent);
        let of_header = || {
            let framed = self.in_record(document, is_key, fields).filter(|_| is_apicurio)?;
            matches!(framed.message, MessageAt::Header(_)).then_some(framed)
        };
        self.of(document).or_else(of_header)
    }
}
