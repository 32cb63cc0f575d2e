//! Schemas, and what is read with them: only the way to one value is decoded.
//!
//! A document of a schema registry starts with a frame that names its schema, as a zero byte and an id of 4 bytes. JSON and Protobuf never start like a
//! frame, so what needs no schema is read with and without it. Instead, a header can name the schema.

use std::borrow::Cow;
use std::sync::Arc;

use super::Fields;

mod avro;
mod decimal;
mod frame;
mod protobuf;

pub use avro::{AvroError, AvroSchema};
use frame::Framed;
pub(super) use frame::NamedDocument;
pub use frame::{Frame, SchemaId};
pub use protobuf::{Naming, ProtoField, ProtoKind, ProtoMessage, ProtoSchema, Repeated};
pub(super) use protobuf::{field_number, find_by_numbers, is_of_numbers};

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
    frame: Frame,
    /// What has those with ids, for messages.
    holder: &'static str,
}

impl Schemas {
    /// The schemas of keys and values that do not come from a registry, from files. A file takes precedence over the id in
    /// the prefix.
    pub fn of_files(key: Option<Arc<Schema>>, value: Option<Arc<Schema>>) -> Self {
        Self { key, value, ..Self::default() }
    }

    /// With this frame of documents, and what has the schemas with ids, for messages.
    #[must_use]
    pub fn framed(self, frame: Frame, holder: &'static str) -> Self {
        Self { frame, holder, ..self }
    }

    /// The frame of documents.
    pub(super) fn frame(&self) -> Frame {
        self.frame
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

    /// The key or the value of a record, and what names its schema. With a schema from a file, no header is needed.
    pub(super) fn named<'d, F: Fields>(&self, record: &'d F, is_key: bool) -> Option<NamedDocument<'d>> {
        if self.of_file(is_key).is_some() && self.frame == Frame::Confluent {
            return NamedDocument::without_schema(record, is_key, self.frame);
        }
        NamedDocument::of(record, is_key, self.frame)
    }

    /// The value at this path into an Avro document. With a schema from a file the prefix of Confluent is optional, and a document in any frame has to
    /// end where the schema ends: otherwise the bytes of another schema, or of the prefix, could look like an id. A document that
    /// does so with and without a prefix has no id: the zero bytes can also be fields, and the last byte of the prefix the length
    /// of a string, so that many records would have the same id.
    pub(super) fn avro<'d>(&self, named: NamedDocument<'d>, path: &[String]) -> Extracted<'d> {
        let Some(schema) = self.of_file(named.is_key) else {
            let Some(framed) = named.framed() else { return Ok(None) };
            let Schema::Avro(schema) = self.get(framed.schema)? else { return Ok(None) };
            return Ok(framed.find(|document| schema.find(document, path)));
        };
        let Schema::Avro(schema) = schema else { return Ok(None) };
        let matching = |document: &&[u8]| schema.matches(document);
        if self.frame == Frame::Confluent {
            let whole = Some(named.bytes).filter(matching);
            let behind_prefix = self.frame.split(named.bytes).map(|framed| framed.rest).filter(matching);
            return Ok(whole.xor(behind_prefix).and_then(|document| schema.find(document, path)));
        }
        let find = |framed: Framed<'d>| {
            framed.find(|document| Some(document).filter(matching).and_then(|it| schema.find(it, path)))
        };
        Ok(named.framed().and_then(find))
    }

    /// The value at this path of field names into a Protobuf message. Without the prefix of Confluent it is the first message of the file.
    pub(super) fn protobuf<'d>(&self, named: NamedDocument<'d>, path: &[String]) -> Extracted<'d> {
        let of_file = self.of_file(named.is_key);
        let (framed, is_optional) = (named.framed(), self.frame == Frame::Confluent);
        let schema = match (of_file, &framed) {
            (Some(schema), _) => schema,
            (None, Some(framed)) => self.get(framed.schema)?,
            (None, None) => return Ok(None),
        };
        let Schema::Protobuf(schema) = schema else { return Ok(None) };
        Ok(match framed {
            Some(framed) => framed.find(|document| schema.find_named(framed.naming, document, path)),
            None if is_optional => schema.find(named.bytes, path),
            None => None,
        })
    }

    /// The schema that a document needs, unless a file has it.
    fn needed<'d>(&self, named: &NamedDocument<'d>) -> Option<Framed<'d>> {
        named.framed().filter(|_| self.of_file(named.is_key).is_none())
    }

    /// Whether the registry does not have the schema of a document.
    pub(super) fn is_unregistered(&self, named: NamedDocument<'_>) -> bool {
        self.needed(&named).is_some_and(|framed| matches!(self.get(framed.schema), Ok(Schema::Unregistered)))
    }

    /// Why a document has no id, if that is for its schema.
    pub(super) fn without_schema(&self, named: NamedDocument<'_>) -> Option<String> {
        if self.of_file(named.is_key).is_some() && self.frame == Frame::Confluent {
            return None;
        }
        let needed = self.needed(&named).filter(|_| self.is_unregistered(named));
        let unregistered =
            |it: Framed<'_>| format!("{} does not have its schema {}", self.holder(), it.schema);
        needed.map(unregistered).or_else(|| named.why_unnamed())
    }

    /// What has the schemas with ids, for messages.
    pub(crate) fn holder(&self) -> &'static str {
        self.holder
    }
}

/// The bytes found in a document, if any.
pub(super) type Extracted<'d> = Result<Option<Cow<'d, [u8]>>, MissingSchema>;
