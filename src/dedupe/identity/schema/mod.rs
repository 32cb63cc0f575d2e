//! Schemas, and what is read with them: only the way to one value is decoded.
//!
//! A document of a schema registry starts with a zero byte and the id of its schema, 4 bytes, big-endian. JSON and Protobuf
//! never start with a zero byte, so both are read with and without this prefix.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

mod avro;
mod decimal;
mod protobuf;

pub use avro::{AvroError, AvroSchema};
pub use protobuf::{ProtoField, ProtoKind, ProtoMessage, ProtoSchema, Repeated};
pub(super) use protobuf::{field_number, find_by_numbers, is_of_numbers};

/// The id of a schema in its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaId(pub u32);

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
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
    pub(super) fn avro<'d>(&self, is_key: bool, document: &'d [u8], path: &[String]) -> Extracted<'d> {
        if let Some(schema) = self.of_file(is_key) {
            let Schema::Avro(schema) = schema else { return Ok(None) };
            let matching = |document: &&[u8]| schema.matches(document);
            let whole = Some(document).filter(matching);
            let behind_prefix = prefixed(document).map(|(_, rest)| rest).filter(matching);
            return Ok(whole.xor(behind_prefix).and_then(|document| schema.find(document, path)));
        }
        let Some((id, document)) = prefixed(document) else { return Ok(None) };
        let Schema::Avro(schema) = self.get(id)? else { return Ok(None) };
        Ok(schema.find(document, path))
    }

    /// The value at this path of field names into a Protobuf message. Without the prefix it is the first message of the file.
    pub(super) fn protobuf<'d>(&self, is_key: bool, document: &'d [u8], path: &[String]) -> Extracted<'d> {
        let prefixed = prefixed(document);
        let schema = match (self.of_file(is_key), prefixed) {
            (Some(schema), _) => schema,
            (None, Some((id, _))) => self.get(id)?,
            (None, None) => return Ok(None),
        };
        let Schema::Protobuf(schema) = schema else { return Ok(None) };
        Ok(match prefixed {
            Some((_, rest)) => schema.find_indexed(rest, path),
            None => schema.find(document, path),
        })
    }
}

/// The bytes found in a document, if any.
pub(super) type Extracted<'d> = Result<Option<Cow<'d, [u8]>>, MissingSchema>;

/// The id of the schema, and what follows the prefix; `None` without a prefix.
pub(super) fn prefixed(document: &[u8]) -> Option<(SchemaId, &[u8])> {
    let (prefix, rest) = document.split_first_chunk::<5>()?;
    let [0, id @ ..] = prefix else { return None };
    Some((SchemaId(u32::from_be_bytes(*id)), rest))
}
