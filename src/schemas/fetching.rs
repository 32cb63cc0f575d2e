//! The thread that fetches schemas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Registry, SharedSchemas, of_files, parse};
use crate::config::SchemasConfig;

/// The longest delay until a stop is noticed, besides that of a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Reads the schemas of the files, and starts the thread that fetches those of the registry until `stop` is set. The error is a
/// sentence for the operator.
pub fn start(config: &SchemasConfig, stop: &Arc<AtomicBool>) -> Result<SharedSchemas, String> {
    let shared = SharedSchemas::new(of_files(config)?);
    let Some(registry) = Registry::open(config)? else { return Ok(shared) };
    let (stop, schemas) = (Arc::clone(stop), shared.clone());
    let work = move || {
        while !stop.load(Ordering::Acquire) {
            for id in schemas.due(CHECK_INTERVAL) {
                match registry.schema(id.0).and_then(|text| parse(id, &text)) {
                    Ok(schema) => {
                        tracing::info!(schema = id.0, registry = registry.url(), "schema fetched");
                        schemas.add(id, schema);
                    }
                    Err(why) => schemas.failed(id, why),
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("schemas".to_owned()).spawn(work);
    thread.map_err(|e| {
        format!("the thread of the schema registry cannot be started: {e}; raise the limit on processes")
    })?;
    Ok(shared)
}
