//! Ids in Avro and Protobuf, decoded independently of the service: only the text of a schema is fetched by it.

mod avro;
mod depth;
mod protobuf;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub(super) use protobuf::{is_number, untyped};

use super::record::Fields;
use avro::Avro;
use protobuf::Protobuf;

/// A schema as a registry stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaText {
    /// `AVRO`, `PROTOBUF` or `JSON`.
    pub format: String,
    /// The schema.
    pub text: String,
    /// The name and text of each schema that it refers to, after those that this one refers to.
    pub references: Vec<(String, String)>,
}

/// What names the schema of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchemaName {
    /// The id in the prefix of the document.
    Id(u32),
    /// The GUID in a header of the record.
    Guid(u128),
}

/// Returns a schema, nothing when the registry does not have it, or why it cannot be fetched.
pub type FetchSchema = Arc<dyn Fn(SchemaName) -> Result<Option<SchemaText>, String> + Send + Sync>;

/// Where schemas come from.
#[derive(Clone, Default)]
pub struct SchemaSources {
    /// The file with the schema of all keys: `.avsc`, `.proto`, or `.desc`.
    pub key: Option<PathBuf>,
    /// The file with the schema of all values.
    pub value: Option<PathBuf>,
    /// The registry.
    pub registry: Option<FetchSchema>,
}

impl fmt::Debug for SchemaSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registry = self.registry.is_some();
        write!(f, "SchemaSources {{ key: {:?}, value: {:?}, registry: {registry} }}", self.key, self.value)
    }
}

/// A schema, ready to decode.
#[derive(Debug)]
enum Decoder {
    Avro(Avro),
    Protobuf(Protobuf),
    Json,
}

/// The schemas used so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoders {
    sources: SchemaSources,
    key: Option<Rc<Decoder>>,
    value: Option<Rc<Decoder>>,
    by_name: RefCell<BTreeMap<SchemaName, Option<Rc<Decoder>>>>,
}

/// The encoding of a document that needs a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Avro,
    Protobuf,
}

impl Decoders {
    /// Reads the files. The error names the file.
    pub fn open(sources: SchemaSources) -> Result<Self, String> {
        let open = |path: &Option<PathBuf>| {
            let opened = path
                .as_deref()
                .map(|path| of_file(path).map_err(|why| format!("the schema in {}: {why}", path.display())));
            opened.transpose().map(|it| it.map(Rc::new))
        };
        let (key, value) = (open(&sources.key)?, open(&sources.value)?);
        Ok(Self { sources, key, value, by_name: RefCell::default() })
    }

    /// The scalar at this path in the key or the value, if any. The error is why a schema cannot be fetched.
    pub fn find<'d>(
        &self,
        encoding: Encoding,
        is_key: bool,
        fields: &Fields<'d>,
        path: &[String],
    ) -> Result<Option<Cow<'d, [u8]>>, String> {
        let (from_file, document) =
            if is_key { (&self.key, fields.key) } else { (&self.value, fields.value) };
        let Some(document) = document else { return Ok(None) };
        if let (None, Some(header)) = (from_file, naming_header(is_key, fields)) {
            return self.named_by_header(encoding, header, document, path);
        }
        let framed = behind_prefix(document).map(|(id, rest)| (SchemaName::Id(id), rest));
        let decoder = match (from_file, framed) {
            (Some(decoder), _) => Rc::clone(decoder),
            (None, Some((name, _))) => match self.fetched(name)? {
                Some(decoder) => decoder,
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        Ok(match (&*decoder, encoding) {
            (Decoder::Avro(avro), Encoding::Avro) => match (from_file, framed) {
                (None, Some((_, rest))) => avro.find(rest, path),
                // Without an id, the whole document has to match, in one way only: zero bytes can be a prefix or fields.
                _ => match (avro.is_whole(document), framed.filter(|(_, rest)| avro.is_whole(rest))) {
                    (true, None) => avro.find(document, path),
                    (false, Some((_, rest))) => avro.find(rest, path),
                    _ => None,
                },
            },
            (Decoder::Protobuf(protobuf), Encoding::Protobuf) => match framed {
                Some((_, rest)) => protobuf.find_indexed(rest, path),
                None => protobuf.find(document, path),
            }
            .map(Cow::from),
            _ => None,
        })
    }

    /// A document whose schema is named in a header: the byte 1 and a GUID, in Protobuf then the indexes of the message.
    fn named_by_header<'d>(
        &self,
        encoding: Encoding,
        header: &[u8],
        document: &'d [u8],
        path: &[String],
    ) -> Result<Option<Cow<'d, [u8]>>, String> {
        let Some((name, indexes)) = named_by(header) else { return Ok(None) };
        // The indexes are not those that the document may begin with.
        if encoding == Encoding::Protobuf && indexes.is_empty() {
            return Ok(None);
        }
        let Some(decoder) = self.fetched(name)? else { return Ok(None) };
        Ok(match (&*decoder, encoding) {
            (Decoder::Avro(avro), Encoding::Avro) => avro.find(document, path),
            (Decoder::Protobuf(protobuf), Encoding::Protobuf) => {
                protobuf.find_indexed(&[indexes, document].concat(), path).map(Cow::from)
            }
            _ => None,
        })
    }

    /// Whether the registry does not have the schema of the key or the value.
    pub fn lacks_schema(&self, is_key: bool, fields: &Fields<'_>) -> Result<bool, String> {
        let (from_file, document) =
            if is_key { (&self.key, fields.key) } else { (&self.value, fields.value) };
        let (None, Some(document)) = (from_file, document) else { return Ok(false) };
        let name = match naming_header(is_key, fields) {
            Some(header) => named_by(header).map(|(name, _)| name),
            None => behind_prefix(document).map(|(id, _)| SchemaName::Id(id)),
        };
        name.map_or(Ok(false), |name| Ok(self.fetched(name)?.is_none()))
    }

    fn fetched(&self, name: SchemaName) -> Result<Option<Rc<Decoder>>, String> {
        if let Some(known) = self.by_name.borrow().get(&name) {
            return Ok(known.clone());
        }
        let fetch = self.sources.registry.as_ref().ok_or("no schema registry is configured")?;
        let fetched = fetch(name).and_then(|schema| schema.as_ref().map(of_text).transpose());
        let decoder = fetched.map_err(|why| format!("schema {name:?}: {why}"))?.map(Rc::new);
        self.by_name.borrow_mut().insert(name, decoder.clone());
        Ok(decoder)
    }
}

/// The header that names the schema of the key or the value. One without a value is no header.
fn naming_header<'d>(is_key: bool, fields: &Fields<'d>) -> Option<&'d [u8]> {
    let header = if is_key { "__key_schema_id" } else { "__value_schema_id" };
    fields.headers.iter().rfind(|(name, _)| *name == header.as_bytes()).and_then(|(_, value)| *value)
}

/// The schema that a header names, and what follows its name.
fn named_by(header: &[u8]) -> Option<(SchemaName, &[u8])> {
    let (guid, rest) = header.strip_prefix(&[1])?.split_first_chunk::<16>()?;
    Some((SchemaName::Guid(u128::from_be_bytes(*guid)), rest))
}

/// The id of the schema and the document itself, behind the prefix of a registry.
pub(super) fn behind_prefix(document: &[u8]) -> Option<(u32, &[u8])> {
    let [0, a, b, c, d, rest @ ..] = document else { return None };
    Some((u32::from_be_bytes([*a, *b, *c, *d]), rest))
}

fn of_file(path: &Path) -> Result<Decoder, String> {
    let read = || std::fs::read(path).map_err(|error| error.to_string());
    match path.extension().and_then(|it| it.to_str()) {
        Some("avsc") => Avro::parse(&String::from_utf8_lossy(&read()?), &[]).map(Decoder::Avro),
        Some("proto") => Protobuf::of_file(path).map(Decoder::Protobuf),
        _ => Protobuf::of_descriptors(&read()?).map(Decoder::Protobuf),
    }
}

fn of_text(schema: &SchemaText) -> Result<Decoder, String> {
    match schema.format.as_str() {
        "AVRO" => Avro::parse(&schema.text, &schema.references).map(Decoder::Avro),
        "PROTOBUF" => Protobuf::of_text(&schema.text, &schema.references).map(Decoder::Protobuf),
        "JSON" => Ok(Decoder::Json),
        other => Err(format!("the type {other} is not supported")),
    }
}
