//! The threads that fetch schemas.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{FetchError, SchemaOrigin, SharedSchemas, of_files};
use crate::config::SchemasConfig;
use crate::dedupe::SchemaId;

/// Schemas that are fetched at the same time: a registry that does not answer for one delays no others.
const THREADS: usize = 4;
/// The longest delay until a stop is noticed, besides that of a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The stack of a thread, bytes. References and imports are followed by recursion, and there can be 1,000 of them.
const STACK: usize = 16 << 20;

/// Reads the schemas of the files, and starts the threads that fetch those with ids until `stop` is set. The error is a
/// sentence for the operator.
pub fn start(config: &SchemasConfig, stop: &Arc<AtomicBool>) -> Result<SharedSchemas, String> {
    let shared = SharedSchemas::new(of_files(config)?, config.wait);
    let Some(origin) = SchemaOrigin::open(config)? else { return Ok(shared) };
    let origin = Arc::new(origin);
    for _ in 0..THREADS {
        let (stop, schemas, origin) = (Arc::clone(stop), shared.clone(), Arc::clone(&origin));
        let work = move || {
            while !stop.load(Ordering::Acquire) {
                if let Some(id) = schemas.due(CHECK_INTERVAL) {
                    fetch(id, &origin, &schemas);
                }
            }
        };
        let thread = std::thread::Builder::new().name("schemas".to_owned()).stack_size(STACK).spawn(work);
        thread.map_err(|e| {
            format!("a thread of the schema registry cannot be started: {e}; raise the limit on processes")
        })?;
    }
    Ok(shared)
}

fn fetch(id: SchemaId, origin: &SchemaOrigin, schemas: &SharedSchemas) {
    match caught(id, || origin.schema(id)) {
        Ok(schema) => {
            tracing::info!(schema = %id, from = origin.name(), "schema fetched");
            schemas.add(id, schema);
        }
        Err(why) => schemas.failed(id, why),
    }
}

/// A panic becomes the reason why the schema cannot be used: without its threads no schema would be fetched any more, and partitions
/// would wait without a reason.
fn caught<T>(id: SchemaId, fetch: impl FnOnce() -> Result<T, FetchError>) -> Result<T, FetchError> {
    let panicked =
        |_| Err(format!("schema {id} cannot be compiled: the compiler panicked, see the log").into());
    catch_unwind(AssertUnwindSafe(fetch)).unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_reason_why_a_schema_cannot_be_used() {
        assert_eq!(caught(SchemaId::Number(7), || Ok(1)), Ok(1));
        let why = caught::<()>(SchemaId::Number(7), || panic!("of a library")).unwrap_err();
        assert_eq!(why.what, "schema 7 cannot be compiled: the compiler panicked, see the log");
    }
}
