//! Ids in Avro and Protobuf, decoded independently of the service: only the text of a schema is fetched by it.

mod avro;
mod depth;
mod fingerprint;
mod frame;
mod protobuf;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub use frame::{Framing, SchemaName};
pub(super) use protobuf::{is_number, untyped};

use super::record::Fields;
use avro::Avro;
use frame::Framed;
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

/// Returns a schema, nothing when the registry does not have it, or why it cannot be fetched.
pub type FetchSchema = Arc<dyn Fn(SchemaName) -> Result<Option<SchemaText>, String> + Send + Sync>;

/// Where schemas come from.
#[derive(Clone, Default)]
pub struct SchemaSources {
    /// What is before a document, unless a header names its schema.
    pub framing: Framing,
    /// The file with the schema of all keys: `.avsc`, `.proto`, or `.desc`; or a directory of them, each named by the id of its schema. With
    /// [`Framing::SingleObject`] a file is found by its fingerprint.
    pub key: Option<PathBuf>,
    /// The same for values.
    pub value: Option<PathBuf>,
    /// The registry.
    pub registry: Option<FetchSchema>,
}

impl fmt::Debug for SchemaSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { framing, key, value, .. }, registry) = (self, self.registry.is_some());
        write!(f, "SchemaSources {{ {framing:?}, key: {key:?}, value: {value:?}, registry: {registry} }}")
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
                .filter(|path| !sources.is_by_id(path))
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
        let (from_file, document) = self.document(is_key, fields);
        let Some(document) = document else { return Ok(None) };
        let framing = self.sources.framing;
        // With a file, Confluent's prefix is optional and its headers have no effect.
        let is_optional = from_file.is_some() && framing == Framing::Confluent;
        let framed =
            if is_optional { framing.of(document) } else { framing.in_record(document, is_key, fields) };
        let decoder = match (from_file, &framed) {
            (Some(decoder), _) => Rc::clone(decoder),
            (None, Some(framed)) => match self.fetched(framed.schema)? {
                Some(decoder) => decoder,
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        let behind = framed.as_ref().and_then(Framed::document);
        Ok(match (&*decoder, encoding) {
            (Decoder::Avro(avro), Encoding::Avro) => {
                let whole = |document: &&[u8]| from_file.is_none() || avro.is_whole(document);
                let bare = Some(document).filter(|_| is_optional).filter(whole);
                // The whole document has to match in one way only: zero bytes can be a prefix or fields.
                match (bare, behind.filter(|it| whole(&&**it))) {
                    (Some(document), None) | (None, Some(Cow::Borrowed(document))) => {
                        avro.find(document, path)
                    }
                    (None, Some(Cow::Owned(document))) => {
                        avro.find(&document, path).map(|it| Cow::Owned(it.into_owned()))
                    }
                    _ => None,
                }
            }
            (Decoder::Protobuf(protobuf), Encoding::Protobuf) => match (&framed, behind) {
                (Some(framed), Some(behind)) => framed
                    .message(&behind)
                    .and_then(|(message, document)| protobuf.find_named(&message, document, path)),
                (None, _) if is_optional => protobuf.find(document, path),
                _ => None,
            }
            .map(Cow::from),
            _ => None,
        })
    }

    /// A document that is read without a schema, and behind the name of its schema if it has one.
    pub fn without_schema<'d>(
        &self,
        is_key: bool,
        fields: &Fields<'d>,
        is_message: bool,
    ) -> Option<Cow<'d, [u8]>> {
        let (_, document) = self.document(is_key, fields);
        let framed = self.sources.framing.without_schema(document?, is_key, fields);
        let Some(framed) = framed else { return document.map(Cow::from) };
        let behind = framed.document()?;
        if !is_message {
            return Some(behind);
        }
        let at = behind.len().checked_sub(framed.message(&behind)?.1.len())?;
        Some(match behind {
            Cow::Borrowed(behind) => behind.get(at..)?.into(),
            Cow::Owned(behind) => behind.get(at..)?.to_vec().into(),
        })
    }

    fn document<'d>(&self, is_key: bool, fields: &Fields<'d>) -> (&Option<Rc<Decoder>>, Option<&'d [u8]>) {
        if is_key { (&self.key, fields.key) } else { (&self.value, fields.value) }
    }

    /// Whether the registry does not have the schema of the key or the value.
    pub fn lacks_schema(&self, is_key: bool, fields: &Fields<'_>) -> Result<bool, String> {
        let (None, Some(document)) = self.document(is_key, fields) else { return Ok(false) };
        let framed = self.sources.framing.in_record(document, is_key, fields);
        framed.map_or(Ok(false), |framed| Ok(self.fetched(framed.schema)?.is_none()))
    }

    fn fetched(&self, name: SchemaName) -> Result<Option<Rc<Decoder>>, String> {
        if let Some(known) = self.by_name.borrow().get(&name) {
            return Ok(known.clone());
        }
        let of_name = || match (self.sources.file_of(name)?, &self.sources.registry) {
            (Some(path), _) => of_file(&path).map(Some),
            (None, Some(fetch)) => fetch(name)?.as_ref().map(of_text).transpose(),
            (None, None) => Err("no schema registry is configured".to_owned()),
        };
        let decoder = of_name().map_err(|why| format!("schema {}: {why}", name.file_stem()))?.map(Rc::new);
        self.by_name.borrow_mut().insert(name, decoder.clone());
        Ok(decoder)
    }
}

impl SchemaSources {
    /// Whether schemas are found at this path by their ids.
    fn is_by_id(&self, path: &Path) -> bool {
        self.framing == Framing::SingleObject || path.is_dir()
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let key = self.key.iter().filter(|key| Some(*key) != self.value.as_ref());
        key.chain(&self.value).filter(|path| self.is_by_id(path))
    }

    /// The file of the schema with this name; nothing if there is none. Two with the same name are an error.
    fn file_of(&self, name: SchemaName) -> Result<Option<PathBuf>, String> {
        let mut files = Vec::new();
        for path in self.paths() {
            let unreadable = |error: std::io::Error| format!("{}: {error}", path.display());
            if path.is_dir() {
                let entries = std::fs::read_dir(path).map_err(unreadable)?;
                files.extend(entries.flatten().map(|entry| entry.path()));
            } else {
                files.push(path.clone());
            }
        }
        let ending = |path: &Path| path.extension().map(|it| it.to_string_lossy().into_owned());
        let SchemaName::Fingerprint(fingerprint) = name else {
            let stem = name.file_stem();
            let is_schema = |path: &Path| {
                ["avsc", "proto", "desc"].map(str::to_owned).contains(&ending(path).unwrap_or_default())
            };
            files.retain(|path| path.file_stem().is_some_and(|it| *it == *stem) && is_schema(path));
            return if files.len() > 1 {
                Err("several files are named by it".to_owned())
            } else {
                Ok(files.pop())
            };
        };
        for path in files.into_iter().filter(|path| ending(path).is_some_and(|it| it == "avsc")) {
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let own = fingerprint::fingerprint(&text);
            if own.ok_or_else(|| format!("{} is no Avro schema", path.display()))? == fingerprint {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
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
