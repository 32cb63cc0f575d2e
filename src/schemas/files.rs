//! Schemas in files by their ids, and a registry.

use std::path::{Path, PathBuf};

use super::{FetchError, Registry, of_file, parse, text_of_file};
use crate::config::SchemasConfig;
use crate::dedupe::{AvroSchema, Frame, Schema, SchemaId};

/// The endings of files with a schema.
const ENDINGS: [&str; 3] = ["avsc", "proto", "desc"];

/// Whether the files at this path have schemas by their ids, and not the one of all keys or values.
pub(super) fn is_by_id(path: &Path, frame: Frame) -> bool {
    frame == Frame::SingleObject || path.is_dir()
}

/// Where schemas with ids come from: files take precedence over the registry. All calls block.
#[derive(Debug)]
pub struct SchemaOrigin {
    /// Directories; with fingerprints also single files. They are read for each schema, so that files can be added.
    paths: Vec<PathBuf>,
    registry: Option<Registry>,
}

impl SchemaOrigin {
    /// `None` when no schema has an id. Fails when a file is not usable.
    pub fn open(config: &SchemasConfig) -> Result<Option<Self>, String> {
        let named = [("value", &config.value), ("key", &config.key)];
        let named = named.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)));
        let mut paths = Vec::new();
        for (name, path) in named.filter(|(_, path)| is_by_id(path, config.frame)) {
            let unusable = |why: String| format!("schemas.{name} = {}: {why}", path.display());
            if path.is_dir() {
                std::fs::read_dir(path).map_err(|error| unusable(format!("cannot be read: {error}")))?;
            } else {
                fingerprint_of(path).map_err(unusable)?;
            }
            if !paths.iter().any(|other| other == path) {
                paths.push(path.to_owned());
            }
        }
        let registry = Registry::open(config)?;
        Ok((registry.is_some() || !paths.is_empty()).then_some(Self { paths, registry }))
    }

    /// Its paths and the address of the registry, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        let paths = self.paths.iter().map(|path| path.display().to_string());
        let registry = self.registry.iter().map(|registry| registry.url.clone());
        paths.chain(registry).collect::<Vec<_>>().join(", ")
    }

    /// The schema with this id.
    pub fn schema(&self, id: SchemaId) -> Result<Schema, FetchError> {
        match (self.in_files(id)?, &self.registry) {
            (Some(path), _) => {
                Ok(of_file(&path).map_err(|why| format!("schema {id}: {}: {why}", path.display()))?)
            }
            (None, Some(registry)) => Ok(registry.schema(id).and_then(|text| Ok(parse(id, &text)?))?),
            (None, None) => {
                let what = format!("{} has no file with the schema {id}; add one", self.name());
                Err(FetchError { what, is_unregistered: true })
            }
        }
    }

    /// The file with this schema. Several with one name can differ.
    fn in_files(&self, id: SchemaId) -> Result<Option<PathBuf>, String> {
        if let SchemaId::Fingerprint(fingerprint) = id {
            return self.with_fingerprint(fingerprint);
        }
        let of = |path: &PathBuf| ENDINGS.map(|ending| path.join(format!("{}.{ending}", id.text())));
        let mut found: Vec<PathBuf> = self.paths.iter().flat_map(of).filter(|path| path.is_file()).collect();
        let last = found.pop();
        match (last, found.first()) {
            (Some(last), Some(other)) => Err(format!(
                "schema {id} is in {} and in {}: remove one of them",
                other.display(),
                last.display()
            )),
            (last, _) => Ok(last),
        }
    }

    /// A file that is not usable is an error only if no other one has the schema.
    fn with_fingerprint(&self, fingerprint: u64) -> Result<Option<PathBuf>, String> {
        let mut unusable = None;
        for path in &self.paths {
            let files = if path.is_dir() {
                let entries =
                    std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
                entries.flatten().map(|entry| entry.path()).filter(|it| is_avro(it)).collect()
            } else {
                vec![path.clone()]
            };
            for file in files {
                match fingerprint_of(&file) {
                    Ok(own) if own == fingerprint => return Ok(Some(file)),
                    Ok(_) => {}
                    Err(why) => unusable = Some(format!("{}: {why}", file.display())),
                }
            }
        }
        unusable.map_or(Ok(None), Err)
    }
}

fn is_avro(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "avsc")
}

fn fingerprint_of(path: &Path) -> Result<u64, String> {
    if !is_avro(path) {
        return Err("the name of the file has to end in .avsc, because the frame is of Avro".to_owned());
    }
    let fingerprint = AvroSchema::fingerprint(&text_of_file(path)?);
    fingerprint.ok_or_else(|| "the file has no Avro schema".to_owned())
}
