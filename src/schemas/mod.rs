//! Schemas from files and from a registry. Workers request a schema by its id and continue with other partitions; a thread
//! fetches it, with retries. A schema that the registry does not have for a while is final: its records are without an id. Where schemas are needed
//! only for comparing contents, which decides about no record, that holds for a schema that cannot be fetched for any reason: a registry that is down
//! would otherwise stop what does not depend on it.

mod builtin;
mod fetching;
mod files;
mod nesting;
mod protobuf;
mod registry;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::clock::monotonic;
use crate::config::{SchemasConfig, read_file_of};
use crate::dedupe::{
    AvroSchema, CompareRule, Digest, Fields, Identity, IdentityRule, MissingSchema, Schema, SchemaId, Schemas,
};
use crate::locked::Locked;
pub use fetching::start;
pub use files::SchemaOrigin;
pub use registry::{FetchError, Registry, SchemaText};

/// The first delay after a failed request; each later one is twice the previous.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// A schema that nobody has requested for this long is not fetched any more.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Once a schema is final, others that the registry does not have are final at once for this long: otherwise bytes that are no schema id would
/// delay their partition again and again. After this time each is requested again.
const AT_ONCE: Duration = Duration::from_mins(10);
/// Shortest time between two log messages about schemas that are final at once.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Most schemas that are known to be unregistered.
const UNREGISTERED: usize = 1_000;
/// Maximum size of a file with a schema, in bytes: a descriptor set has all files that are imported.
const LARGEST_FILE: u64 = 64 << 20;

/// The schemas that are known and those that are requested. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SharedSchemas {
    shared: Arc<SchemaStore>,
}

#[derive(Debug, Default)]
struct SchemaStore {
    /// Increases with every schema.
    version: AtomicU64,
    known: Mutex<KnownSchemas>,
    requested: Condvar,
}

#[derive(Debug, Default)]
struct KnownSchemas {
    schemas: Schemas,
    requests: BTreeMap<SchemaId, SchemaRequest>,
    /// How long a schema that the registry does not have is waited for.
    wait: Duration,
    /// Whether no record is decided with a schema, so that none is waited for without limit.
    are_optional: bool,
    /// When a schema was last final for that.
    final_at: Option<Instant>,
    /// When that was last logged.
    logged: Option<Instant>,
}

/// A schema that is not known yet, or that is known as unregistered, which is requested again later.
#[derive(Debug)]
struct SchemaRequest {
    requested: Instant,
    next: Instant,
    delay: Duration,
    /// Whether a thread fetches it now.
    is_fetched: bool,
    /// Why the last attempt failed.
    why: Option<String>,
    /// When the registry first responded that it does not have the schema; or first failed, where schemas are optional.
    missing_since: Option<Instant>,
}

impl SharedSchemas {
    /// Starts with these schemas. A schema that the registry does not have is waited for during `wait`.
    #[must_use]
    pub fn new(schemas: Schemas, wait: Duration) -> Self {
        let shared = Self::default();
        *shared.shared.known.locked() = KnownSchemas { schemas, wait, ..KnownSchemas::default() };
        shared
    }

    /// Waits for no schema without limit.
    #[must_use]
    pub fn optional(self, are_optional: bool) -> Self {
        self.shared.known.locked().are_optional = are_optional;
        self
    }

    /// A number that increases when a schema becomes known.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    /// The schemas that are known now.
    #[must_use]
    pub fn known(&self) -> Schemas {
        self.shared.known.locked().schemas.clone()
    }

    /// Requests a schema; to be repeated while it is needed. Returns why the last attempt to fetch it failed.
    pub fn request(&self, id: SchemaId) -> Option<String> {
        let mut known = self.shared.known.locked();
        if known.schemas.has(id) {
            return None;
        }
        let now = monotonic();
        let new = || SchemaRequest {
            requested: now,
            next: now,
            delay: FIRST_DELAY,
            is_fetched: false,
            why: None,
            missing_since: None,
        };
        let request = known.requests.entry(id).or_insert_with(new);
        request.requested = now;
        let why = request.why.clone();
        drop(known);
        self.shared.requested.notify_one();
        why
    }

    /// Adds a schema.
    pub fn add(&self, id: SchemaId, schema: Schema) {
        let mut known = self.shared.known.locked();
        known.schemas.insert(id, Arc::new(schema));
        known.requests.remove(&id);
        self.shared.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Stores why a schema could not be fetched, and when it is tried again.
    fn failed(&self, id: SchemaId, failed: FetchError) {
        let (now, mut known) = (monotonic(), self.shared.known.locked());
        let KnownSchemas { schemas, requests, wait, are_optional, final_at, logged } = &mut *known;
        let Some(request) = requests.get_mut(&id) else { return };
        request.is_fetched = false;
        let is_missing = failed.is_unregistered || *are_optional;
        let is_at_once = is_missing && final_at.is_some_and(|at| now.saturating_duration_since(at) < AT_ONCE);
        if request.why.as_ref() != Some(&failed.what) && !is_at_once {
            tracing::warn!(schema = %id, why = failed.what, "schema not fetched; partitions whose records need it wait");
        }
        request.next = now + request.delay;
        // One that was final too early, as of a replica of the registry that is behind, is known soon.
        let is_final = schemas.has(id);
        request.delay = (request.delay * 2).min(if is_final { AT_ONCE } else { MAX_DELAY });
        request.why = Some(failed.what);
        if !is_missing || is_final {
            return;
        }
        let until = *request.missing_since.get_or_insert(now) + *wait;
        if !is_at_once && now < until {
            request.next = request.next.min(until);
            return;
        }
        *final_at = Some(now);
        schemas.insert(id, Arc::new(Schema::Unregistered));
        // Bytes that are no schema id can name another schema in each record. The note names the first ones.
        let is_silent =
            is_at_once && logged.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL);
        if !is_silent {
            *logged = Some(now);
            if *are_optional {
                tracing::warn!(schema = %id, "waited for this schema long enough: records that need it are not compared");
            } else {
                let holder = schemas.holder();
                tracing::warn!(schema = %id, "{holder} does not have this schema: records that need it are without an id, or not compared");
            }
        }
        if requests.keys().filter(|id| schemas.has(**id)).count() > UNREGISTERED {
            requests.retain(|id, _| !schemas.remove(*id));
        }
        self.shared.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The schemas that records are without an id for, or not compared, as a note.
    pub fn note(&self) -> Option<String> {
        let known = self.shared.known.locked();
        let ids = known.requests.keys().copied().filter(|id| known.schemas.has(*id));
        let holder = known.schemas.holder();
        if known.are_optional { uncompared(holder, ids) } else { unregistered(holder, ids) }
    }

    /// Waits at most `wait` for a request that is due, the one that is due the longest. It ends by [`Self::add`] or [`Self::failed`].
    fn due(&self, wait: Duration) -> Option<SchemaId> {
        let mut chosen = None;
        let is_none_due = |known: &mut KnownSchemas| {
            let (now, KnownSchemas { schemas, requests, .. }) = (monotonic(), known);
            requests.retain(|id, request| {
                let is_new = now.saturating_duration_since(request.requested) < FORGOTTEN;
                request.is_fetched || schemas.has(*id) || is_new
            });
            // What is needed goes before what is requested again, of which one is at a time.
            let is_busy = requests.iter().any(|(id, request)| request.is_fetched && schemas.has(*id));
            let due = requests.iter_mut().filter(|(id, request)| {
                request.next <= now && !request.is_fetched && !(is_busy && schemas.has(**id))
            });
            let first = due.min_by_key(|(id, request)| (schemas.has(**id), request.next));
            chosen = first.map(|(id, request)| {
                request.is_fetched = true;
                *id
            });
            chosen.is_none()
        };
        drop(self.shared.requested.wait_timeout_while(self.shared.known.locked(), wait, is_none_due));
        chosen
    }
}

/// The sentence about schemas that the registry does not have; `None` without any.
pub fn unregistered(holder: &str, ids: impl Iterator<Item = SchemaId>) -> Option<String> {
    let listed = listed(ids)?;
    Some(format!(
        "{holder} does not have {listed}: these records are without an id (identity.on_missing), or not compared (identity.compare)"
    ))
}

fn uncompared(holder: &str, ids: impl Iterator<Item = SchemaId>) -> Option<String> {
    let listed = listed(ids)?;
    Some(format!(
        "{holder} did not return {listed}: these records are not compared (identity.compare); the log has the reason"
    ))
}

/// Schemas by number and id; `None` without any.
fn listed(ids: impl Iterator<Item = SchemaId>) -> Option<String> {
    let (mut ids, more): (Vec<String>, _) = (ids.map(|id| id.to_string()).collect(), 8);
    if ids.is_empty() {
        return None;
    }
    let count = ids.len();
    ids.truncate(more);
    let dots = if count > more { ", ..." } else { "" };
    Some(format!("{count} schema(s) that records name, {}{dots}", ids.join(", ")))
}

/// The schemas of all keys and of all values, from the files of the configuration.
pub fn of_files(config: &SchemasConfig) -> Result<Schemas, String> {
    let read = |name: &str, path: Option<&Path>| {
        let schema = path.filter(|path| !files::is_by_id(path, config.frame)).map(|path: &Path| {
            of_file(path).map_err(|why| format!("schemas.{name} = {}: {why}", path.display()))
        });
        schema.transpose().map(|schema| schema.map(Arc::new))
    };
    let key = read("key", config.key.as_deref())?;
    Ok(Schemas::of_files(key, read("value", config.value.as_deref())?).framed(config.frame, config.holder()))
}

fn unreadable(error: &dyn std::error::Error) -> String {
    format!("the file cannot be read: {error}")
}

fn text_of_file(path: &Path) -> Result<String, String> {
    let bytes = read_file_of(path, LARGEST_FILE).map_err(|error| unreadable(&error))?;
    String::from_utf8(bytes).map_err(|error| unreadable(&error))
}

fn of_file(path: &Path) -> Result<Schema, String> {
    let read = || read_file_of(path, LARGEST_FILE).map_err(|error| unreadable(&error));
    match path.extension().and_then(|it| it.to_str()) {
        Some("avsc") => {
            let schema = AvroSchema::parse::<&str>(&text_of_file(path)?, &[]);
            schema.map(Schema::Avro).map_err(|error| format!("the schema {error}"))
        }
        // The compiler reads it, and the files that it imports, again.
        Some("proto") => read().and_then(|_| protobuf::of_file(path)).map(Schema::Protobuf),
        Some("desc" | "pb" | "protoset") => protobuf::of_descriptors(&read()?).map(Schema::Protobuf),
        _ => read().and_then(|_| {
            let what =
                "the name of the file has to end in .avsc, .proto, or .desc (a descriptor set of protoc)";
            Err(what.to_owned())
        }),
    }
}

/// All schemas of the configuration, fetched when they are needed. Its calls block, so that it is for commands that read a topic
/// once.
pub struct BlockingSchemas {
    known: RefCell<Schemas>,
    unregistered: RefCell<BTreeSet<SchemaId>>,
    /// Why the first record without an id has none.
    why_missing: RefCell<Option<String>>,
    origin: Option<SchemaOrigin>,
}

impl BlockingSchemas {
    /// Reads the schemas of the files.
    pub fn open(config: &SchemasConfig) -> Result<Self, String> {
        let known = RefCell::new(of_files(config)?);
        let origin = SchemaOrigin::open(config)?;
        Ok(Self { known, unregistered: RefCell::default(), why_missing: RefCell::default(), origin })
    }

    /// The schemas that the registry does not have, as a sentence.
    pub fn note(&self) -> Option<String> {
        unregistered(self.known.borrow().holder(), self.unregistered.borrow().iter().copied())
    }

    /// Why the first record without an id has none, as a sentence.
    pub fn why_missing(&self) -> Option<String> {
        self.why_missing.borrow().clone()
    }

    /// The identity of a record. The error is why a schema cannot be fetched.
    pub fn identify<F: Fields>(&self, rule: &IdentityRule, record: &F) -> Result<Option<Identity>, String> {
        let identity = self.read(|known| rule.identify(record, known))?;
        if identity.is_none() {
            let why = || rule.why_missing(record, &self.known.borrow());
            self.why_missing.borrow_mut().get_or_insert_with(why);
        }
        Ok(identity)
    }

    /// The digest of a record. The error is why a schema cannot be fetched.
    pub fn digest<F: Fields>(&self, rule: &CompareRule, record: &F) -> Result<Digest, String> {
        self.read(|known| rule.digest(record, known))
    }

    /// Reads with the schemas that are known, and fetches one that is missing. The error is why that is not possible.
    pub fn read<T>(&self, read: impl Fn(&Schemas) -> Result<T, MissingSchema>) -> Result<T, String> {
        loop {
            let result = read(&self.known.borrow());
            let MissingSchema(id) = match result {
                Ok(found) => return Ok(found),
                Err(missing) => missing,
            };
            let origin = self.origin.as_ref().ok_or_else(|| {
                format!("there is no registry or directory for schema {id}; set schemas.registry, or schemas.value to a directory")
            })?;
            let schema = match origin.schema(id) {
                Ok(schema) => schema,
                Err(failed) if failed.is_unregistered => {
                    self.unregistered.borrow_mut().insert(id);
                    Schema::Unregistered
                }
                Err(failed) => return Err(failed.what),
            };
            self.known.borrow_mut().insert(id, Arc::new(schema));
        }
    }
}

/// Parses a schema of a registry.
pub fn parse(id: SchemaId, schema: &SchemaText) -> Result<Schema, String> {
    let parsed = match schema.format.as_str() {
        "AVRO" => {
            let references: Vec<&str> = schema.references.iter().map(|(_, text)| text.as_str()).collect();
            let parsed = AvroSchema::parse(&schema.text, &references);
            parsed.map(Schema::Avro).map_err(|error| error.to_string())
        }
        "PROTOBUF" => protobuf::of_texts(&schema.text, &schema.references).map(Schema::Protobuf),
        "JSON" => Ok(Schema::Json),
        other => Err(format!("has the type {other}, which is not supported")),
    };
    parsed.map_err(|why| format!("schema {id} {why}"))
}

#[cfg(test)]
mod tests;
