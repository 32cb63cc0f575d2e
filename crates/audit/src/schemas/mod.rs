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

/// Returns the schema with an id, or why it cannot be fetched.
pub type FetchSchema = Arc<dyn Fn(u32) -> Result<SchemaText, String> + Send + Sync>;

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
    by_id: RefCell<BTreeMap<u32, Rc<Decoder>>>,
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
        Ok(Self { sources, key, value, by_id: RefCell::default() })
    }

    /// The scalar at this path, if any. The error is why a schema cannot be fetched.
    pub fn find<'d>(
        &self,
        (encoding, is_key): (Encoding, bool),
        document: &'d [u8],
        path: &[String],
    ) -> Result<Option<Cow<'d, [u8]>>, String> {
        let from_file = if is_key { &self.key } else { &self.value };
        let framed = behind_prefix(document);
        let decoder = match (from_file, framed) {
            (Some(decoder), _) => Rc::clone(decoder),
            (None, Some((id, _))) => self.fetched(id)?,
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
            },
            _ => None,
        })
    }

    fn fetched(&self, id: u32) -> Result<Rc<Decoder>, String> {
        if let Some(known) = self.by_id.borrow().get(&id) {
            return Ok(Rc::clone(known));
        }
        let fetch = self.sources.registry.as_ref().ok_or("no schema registry is configured")?;
        let decoder =
            fetch(id).and_then(|schema| of_text(&schema)).map_err(|why| format!("schema {id}: {why}"))?;
        let decoder = Rc::new(decoder);
        self.by_id.borrow_mut().insert(id, Rc::clone(&decoder));
        Ok(decoder)
    }
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
