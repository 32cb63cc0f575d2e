//! Schemas, and what is read with them: only the way to one value is decoded.
//!
//! A document of a schema registry starts with a zero byte and the id of its schema, 4 bytes, big-endian. JSON and Protobuf
//! never start with a zero byte, so both are read with and without this prefix. Instead, a header can name the schema by its GUID.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::Fields;
use super::uuid::hyphenated;

mod avro;
mod decimal;
mod protobuf;

pub use avro::{AvroError, AvroSchema};
pub use protobuf::{ProtoField, ProtoKind, ProtoMessage, ProtoSchema, Repeated};
pub(super) use protobuf::{field_number, find_by_numbers, is_of_numbers};

/// The name of a schema in its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaId {
    /// The id in a prefix.
    Number(u32),
    /// The GUID in a header.
    Guid(u128),
}

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(id) => write!(f, "{id}"),
            Self::Guid(guid) => f.write_str(&String::from_utf8_lossy(&hyphenated(guid.to_be_bytes()))),
        }
    }
}

/// The id of a record cannot be read before this schema is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("schema {0} is not known")]
pub struct MissingSchema(pub SchemaId);

/// A schema, as far as reading an id needs it.
#[derive(Debug)]
pub enum Schema {
    /// Apache Avro.
    Avro(AvroSchema),
    /// The messages of a Protobuf file.
    Protobuf(ProtoSchema),
    /// JSON Schema. JSON is read without it.
    Json,
    /// The registry does not have it, or does not return it where no id needs it: records that need it have no id, and are not compared.
    Unregistered,
}

/// The schemas that are known. A clone shares them.
#[derive(Debug, Clone, Default)]
pub struct Schemas {
    /// Sorted by id.
    by_id: Vec<(SchemaId, Arc<Schema>)>,
    key: Option<Arc<Schema>>,
    value: Option<Arc<Schema>>,
}

impl Schemas {
    /// The schemas of keys and values that do not come from a registry, from files. A file takes precedence over the id in
    /// the prefix.
    #[must_use]
    pub fn of_files(key: Option<Arc<Schema>>, value: Option<Arc<Schema>>) -> Self {
        Self { by_id: Vec::new(), key, value }
    }

    /// Adds or replaces a schema of the registry.
    pub fn insert(&mut self, id: SchemaId, schema: Arc<Schema>) {
        match self.by_id.binary_search_by_key(&id, |(known, _)| *known) {
            Ok(at) => self.by_id.splice(at..=at, [(id, schema)]).for_each(drop),
            Err(at) => self.by_id.insert(at, (id, schema)),
        }
    }

    /// Removes a schema of the registry. Returns whether it was known.
    pub fn remove(&mut self, id: SchemaId) -> bool {
        let found = self.by_id.binary_search_by_key(&id, |(known, _)| *known);
        found.map(|at| self.by_id.remove(at)).is_ok()
    }

    /// Whether this schema of the registry is known.
    #[must_use]
    pub fn has(&self, id: SchemaId) -> bool {
        self.get(id).is_ok()
    }

    fn get(&self, id: SchemaId) -> Result<&Schema, MissingSchema> {
        let found = self.by_id.binary_search_by_key(&id, |(known, _)| *known);
        found.ok().and_then(|at| self.by_id.get(at)).map(|(_, schema)| &**schema).ok_or(MissingSchema(id))
    }

    /// The schema from the file for keys, or for values.
    fn of_file(&self, is_key: bool) -> Option<&Schema> {
        if is_key { self.key.as_deref() } else { self.value.as_deref() }
    }

    /// The value at this path into an Avro document. With a schema from a file the prefix is optional, and the document has to
    /// end where the schema ends: otherwise the bytes of another schema, or of the prefix, could look like an id. A document that
    /// does so with and without a prefix has no id: the zero bytes can also be fields, and the last byte of the prefix the length
    /// of a string, so that many records would have the same id.
    pub(super) fn avro<'d>(&self, named: NamedDocument<'d>, path: &[String]) -> Extracted<'d> {
        let document = named.bytes;
        if let Some(schema) = self.of_file(named.is_key) {
            let Schema::Avro(schema) = schema else { return Ok(None) };
            let matching = |document: &&[u8]| schema.matches(document);
            let whole = Some(document).filter(matching);
            let behind_prefix = prefixed(document).map(|(_, rest)| rest).filter(matching);
            return Ok(whole.xor(behind_prefix).and_then(|document| schema.find(document, path)));
        }
        let Some(framed) = named.framed() else { return Ok(None) };
        let Schema::Avro(schema) = self.get(framed.schema)? else { return Ok(None) };
        Ok(schema.find(framed.rest, path))
    }

    /// The value at this path of field names into a Protobuf message. Without the prefix it is the first message of the file.
    pub(super) fn protobuf<'d>(&self, named: NamedDocument<'d>, path: &[String]) -> Extracted<'d> {
        let framed = named.framed();
        let schema = match (self.of_file(named.is_key), &framed) {
            (Some(schema), _) => schema,
            (None, Some(framed)) => self.get(framed.schema)?,
            (None, None) => return Ok(None),
        };
        let Schema::Protobuf(schema) = schema else { return Ok(None) };
        Ok(match framed {
            Some(Framed { indexes: Some(indexes), rest, .. }) => schema.find_at(indexes, rest, path),
            Some(Framed { rest, .. }) => schema.find_indexed(rest, path),
            None => schema.find(named.bytes, path),
        })
    }

    /// Whether the registry does not have the schema of a document.
    pub(super) fn is_unregistered(&self, named: NamedDocument<'_>) -> bool {
        let of_registry = named.framed().filter(|_| self.of_file(named.is_key).is_none());
        of_registry.is_some_and(|framed| matches!(self.get(framed.schema), Ok(Schema::Unregistered)))
    }

    /// Why a document has no id, if that is for its schema.
    pub(super) fn without_schema(&self, named: NamedDocument<'_>) -> Option<String> {
        if self.of_file(named.is_key).is_some() {
            return None;
        }
        let Some(Framed { schema, .. }) = named.framed() else {
            return Some(match named.header {
                Some(_) => format!("its header {} is not the byte 1 and a GUID", named.header_name()),
                None => "it does not begin with the prefix of a schema registry: a zero byte and the id of its schema".to_owned(),
            });
        };
        self.is_unregistered(named).then(|| format!("the schema registry does not have its schema {schema}"))
    }
}

/// A document of a record, and the header of the record that names its schema.
#[derive(Clone, Copy)]
pub(super) struct NamedDocument<'d> {
    is_key: bool,
    bytes: &'d [u8],
    header: Option<&'d [u8]>,
}

/// What names the schema of a document, and the document without that.
struct Framed<'d> {
    schema: SchemaId,
    /// The indexes of a Protobuf message, if they are not in the rest.
    indexes: Option<&'d [u8]>,
    rest: &'d [u8],
}

impl<'d> NamedDocument<'d> {
    /// The key or the value of a record; `None` when it is null. A schema from a file needs no name.
    pub fn of<F: Fields>(record: &'d F, is_key: bool, schemas: &Schemas) -> Option<Self> {
        let named = Self { is_key, bytes: if is_key { record.key() } else { record.value() }?, header: None };
        let header = schemas.of_file(is_key).is_none().then(|| record.header(named.header_name()));
        Some(Self { header: header.flatten(), ..named })
    }

    fn header_name(&self) -> &'static str {
        if self.is_key { "__key_schema_id" } else { "__value_schema_id" }
    }

    /// A header takes precedence, as in the deserializers of Confluent: without one, a zero byte is a prefix.
    fn framed(&self) -> Option<Framed<'d>> {
        let Some(header) = self.header else {
            return prefixed(self.bytes).map(|(schema, rest)| Framed { schema, indexes: None, rest });
        };
        let (name, indexes) = header.split_first_chunk::<17>()?;
        let [1, guid @ ..] = name else { return None };
        let schema = SchemaId::Guid(u128::from_be_bytes(*guid));
        Some(Framed { schema, indexes: Some(indexes), rest: self.bytes })
    }
}

/// The bytes found in a document, if any.
pub(super) type Extracted<'d> = Result<Option<Cow<'d, [u8]>>, MissingSchema>;

/// The id of the schema, and what follows the prefix; `None` without a prefix.
pub(super) fn prefixed(document: &[u8]) -> Option<(SchemaId, &[u8])> {
    let (prefix, rest) = document.split_first_chunk::<5>()?;
    let [0, id @ ..] = prefix else { return None };
    Some((SchemaId::Number(u32::from_be_bytes(*id)), rest))
}
