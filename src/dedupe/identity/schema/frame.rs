//! What names the schema of a document: a frame before it, or a header of the record.

use std::borrow::Cow;
use std::fmt;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use super::super::Fields;
use super::super::uuid::hyphenated;
use super::protobuf::Naming;

/// Most bytes of a document that is compressed in its frame: a few bytes can stand for a thousand times as many.
const UNPACKED_MAX: usize = 16 << 20;

/// The frame of documents without a header that names their schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Frame {
    /// A zero byte and an id of 4 bytes.
    #[default]
    Confluent,
    /// The byte 3, the compression, and the UUID of a schema version.
    Glue,
    /// A zero byte and a global id of 8 bytes.
    Apicurio,
    /// The same with a content id.
    ApicurioContent,
    /// The bytes C3 01 and the fingerprint of the schema: the single-object encoding of Avro.
    SingleObject,
}

impl Frame {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Confluent, Self::Glue, Self::Apicurio, Self::ApicurioContent, Self::SingleObject];

    /// As a word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confluent => "confluent",
            Self::Glue => "glue",
            Self::Apicurio => "apicurio",
            Self::ApicurioContent => "apicurio-content",
            Self::SingleObject => "single-object",
        }
    }

    /// What it consists of.
    fn described(self) -> &'static str {
        match self {
            Self::Confluent => "the prefix of a schema registry: a zero byte and the id of its schema",
            Self::Glue => {
                "the frame of AWS Glue: the byte 3, the byte 0 or 5, and the UUID of its schema version"
            }
            Self::Apicurio => "the frame of Apicurio: a zero byte and the global id of its schema, 8 bytes",
            Self::ApicurioContent => {
                "the frame of Apicurio: a zero byte and the content id of its schema, 8 bytes"
            }
            Self::SingleObject => {
                "the single-object encoding of Avro: the bytes C3 01 and the fingerprint of its schema"
            }
        }
    }

    /// The schema that a document names, and the document behind that; `None` without this frame.
    pub fn split(self, document: &[u8]) -> Option<Framed<'_>> {
        let (schema, naming, rest) = match self {
            Self::Confluent => {
                let (id, rest) = document.strip_prefix(&[0])?.split_first_chunk()?;
                (SchemaId::Number(u32::from_be_bytes(*id)), Naming::Indexes, rest)
            }
            Self::Glue => {
                let (compression, rest) = document.strip_prefix(&[3])?.split_first()?;
                let (id, rest) = rest.split_first_chunk().filter(|_| matches!(compression, 0 | 5))?;
                let schema = SchemaId::Guid(u128::from_be_bytes(*id));
                return Some(Framed { schema, naming: Naming::Sorted, is_packed: *compression == 5, rest });
            }
            Self::Apicurio | Self::ApicurioContent => {
                let (id, rest) = document.strip_prefix(&[0])?.split_first_chunk()?;
                let id = u64::from_be_bytes(*id);
                let is_global = self == Self::Apicurio;
                let schema = if is_global { SchemaId::Global(id) } else { SchemaId::Content(id) };
                (schema, Naming::Ref, rest)
            }
            Self::SingleObject => {
                let (id, rest) = document.strip_prefix(&[0xc3, 1])?.split_first_chunk()?;
                (SchemaId::Fingerprint(u64::from_le_bytes(*id)), Naming::None, rest)
            }
        };
        Some(Framed { schema, naming, is_packed: false, rest })
    }
}

/// The name of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaId {
    /// The id of Confluent.
    Number(u32),
    /// The GUID of Confluent, or the UUID of a schema version of AWS Glue.
    Guid(u128),
    /// The global id of Apicurio.
    Global(u64),
    /// The content id of Apicurio.
    Content(u64),
    /// CRC-64-AVRO of the parsing canonical form.
    Fingerprint(u64),
}

impl SchemaId {
    /// Its text in the name of a file, and in a request.
    pub fn text(self) -> String {
        match self {
            // Ids are positive. Others are in bytes that are no prefix.
            Self::Number(id) => id.cast_signed().to_string(),
            Self::Global(id) | Self::Content(id) => id.cast_signed().to_string(),
            Self::Guid(guid) => String::from_utf8_lossy(&hyphenated(guid.to_be_bytes())).into_owned(),
            Self::Fingerprint(fingerprint) => format!("{fingerprint:016x}"),
        }
    }
}

/// With what it is, where ids of several sorts look alike.
impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = match self {
            Self::Global(_) => "global id ",
            Self::Content(_) => "content id ",
            Self::Number(_) | Self::Guid(_) | Self::Fingerprint(_) => "",
        };
        write!(f, "{sort}{}", self.text())
    }
}

/// What names the schema of a document, and the document without that.
#[derive(Clone, Copy)]
pub struct Framed<'d> {
    pub schema: SchemaId,
    /// How a Protobuf message of the schema is named.
    pub naming: Naming<'d>,
    is_packed: bool,
    /// The document, which can be packed.
    pub rest: &'d [u8],
}

impl<'d> Framed<'d> {
    /// What is found in the document; `None` also when it cannot be unpacked.
    pub fn find(&self, find: impl for<'b> Fn(&'b [u8]) -> Option<Cow<'b, [u8]>>) -> Option<Cow<'d, [u8]>> {
        if !self.is_packed {
            return find(self.rest);
        }
        find(&self.unpacked()?).map(|found| Cow::Owned(found.into_owned()))
    }

    fn unpacked(&self) -> Option<Vec<u8>> {
        decompress_to_vec_zlib_with_limit(self.rest, UNPACKED_MAX).ok()
    }
}

/// A header that names a schema.
#[derive(Clone, Copy)]
enum NamingHeader<'d> {
    /// Of Confluent: the byte 0 and an id, or the byte 1 and a GUID, and in Protobuf the indexes of the message.
    Confluent(&'d [u8]),
    /// Of Apicurio: an id of 8 bytes.
    Content(&'d [u8]),
    Global(&'d [u8]),
}

/// Names of headers: of keys, and of values.
const CONFLUENT: [&str; 2] = ["__key_schema_id", "__value_schema_id"];
const CONTENT: [&str; 2] = ["apicurio.key.contentId", "apicurio.value.contentId"];
const GLOBAL: [&str; 2] = ["apicurio.key.globalId", "apicurio.value.globalId"];
/// The header with the name of a Protobuf message.
const MESSAGE: [&str; 2] = ["apicurio.protobuf.type.key", "apicurio.protobuf.type"];

fn of_field([key, value]: [&'static str; 2], is_key: bool) -> &'static str {
    if is_key { key } else { value }
}

/// A document of a record, and the header of the record that names its schema.
#[derive(Clone, Copy)]
pub(in super::super) struct NamedDocument<'d> {
    pub is_key: bool,
    pub bytes: &'d [u8],
    pub frame: Frame,
    header: Option<NamingHeader<'d>>,
    /// The name of the message, where the header is of Apicurio.
    message: Option<&'d [u8]>,
}

impl<'d> NamedDocument<'d> {
    /// The key or the value of a record; `None` when it is null. A header takes precedence over the frame, as in the deserializers.
    pub fn of<F: Fields>(record: &'d F, is_key: bool, frame: Frame) -> Option<Self> {
        let bytes = if is_key { record.key() } else { record.value() }?;
        let header = |names| record.header(of_field(names, is_key));
        let naming = header(CONFLUENT).map(NamingHeader::Confluent);
        let naming = naming.or_else(|| header(CONTENT).map(NamingHeader::Content));
        let naming = naming.or_else(|| header(GLOBAL).map(NamingHeader::Global));
        let is_apicurio = matches!(naming, Some(NamingHeader::Content(_) | NamingHeader::Global(_)));
        let message = is_apicurio.then(|| header(MESSAGE)).flatten();
        Some(Self { is_key, bytes, frame, header: naming, message })
    }

    /// The same for a format that needs no schema. Of headers only those of Apicurio count, which announce another name in a Protobuf document.
    pub fn without_schema<F: Fields>(record: &'d F, is_key: bool, frame: Frame) -> Option<Self> {
        if matches!(frame, Frame::Apicurio | Frame::ApicurioContent) {
            return Self::of(record, is_key, frame);
        }
        let bytes = if is_key { record.key() } else { record.value() }?;
        Some(Self { is_key, bytes, frame, header: None, message: None })
    }

    /// The schema that the header or the frame names; `None` when there is no frame, or the header is no name.
    pub fn framed(&self) -> Option<Framed<'d>> {
        let eight = |id: &[u8]| id.try_into().ok().map(u64::from_be_bytes);
        let (schema, naming) = match self.header {
            None => return self.frame.split(self.bytes),
            Some(NamingHeader::Confluent([0, name @ ..])) => {
                let (id, indexes) = name.split_first_chunk()?;
                (SchemaId::Number(u32::from_be_bytes(*id)), Naming::IndexesApart(indexes))
            }
            Some(NamingHeader::Confluent([1, name @ ..])) => {
                let (id, indexes) = name.split_first_chunk()?;
                (SchemaId::Guid(u128::from_be_bytes(*id)), Naming::IndexesApart(indexes))
            }
            Some(NamingHeader::Confluent(_)) => return None,
            Some(NamingHeader::Content(id)) => (SchemaId::Content(eight(id)?), Naming::Header(self.message)),
            Some(NamingHeader::Global(id)) => (SchemaId::Global(eight(id)?), Naming::Header(self.message)),
        };
        Some(Framed { schema, naming, is_packed: false, rest: self.bytes })
    }

    /// The same of a format that needs no schema: the frame is optional, because such a document never begins like one.
    pub fn optionally_framed(&self) -> Option<Framed<'d>> {
        self.frame.split(self.bytes).or_else(|| self.message.and_then(|_| self.framed()))
    }

    /// Why nothing names the schema, or the document cannot be unpacked.
    pub fn why_unnamed(&self) -> Option<String> {
        let header =
            |names, what: &str| Some(format!("its header {} is not {what}", of_field(names, self.is_key)));
        match (self.framed(), self.header) {
            (Some(framed), _) if framed.is_packed && framed.unpacked().is_none() => {
                let most = UNPACKED_MAX >> 20;
                Some(format!("its content, compressed with zlib, is damaged, or larger than {most} MiB"))
            }
            (Some(_), _) => None,
            (None, Some(NamingHeader::Confluent(_))) => {
                header(CONFLUENT, "the byte 0 and an id, or the byte 1 and a GUID")
            }
            (None, Some(NamingHeader::Content(_))) => header(CONTENT, "an id of 8 bytes"),
            (None, Some(NamingHeader::Global(_))) => header(GLOBAL, "an id of 8 bytes"),
            (None, None) => Some(format!("it does not begin with {}", self.frame.described())),
        }
    }
}
