//! Support for integration tests: a real Apache Kafka, a proxy that drops or delays requests and responses, readers.
//!
//! A test that requires a broker fails if none is installed, and is never skipped. `scripts/setup` installs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]
#![allow(missing_docs, reason = "tests have no published docs")]

pub mod admin;
pub mod certificates;
pub mod chain;
pub mod child;
pub mod cookbook;
pub mod crafted;
pub mod instance;
pub mod jvm;
pub mod kafka;
pub mod load;
pub mod mock;
pub mod pipe;
pub mod ports;
pub mod proxy;
pub mod raw_batch;
pub mod recorded;
pub mod records;
pub mod registry;
pub mod rekey;
pub mod secured;
pub mod send;
pub mod tamper;
pub mod topic;
pub mod traces;
pub mod transactions;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dedupd::clock::monotonic;

pub use chain::{ChainAudit, compare_chain, source_of};
pub use instance::{Running, Sidecar};
pub use jvm::{config_tool, kafka_version, tool};
pub use kafka::Kafka;
pub use load::Load;
pub use pipe::{Findings, Pipe};
pub use proxy::{Proxy, api};
pub use records::{Isolation, Record};
pub use registry::StubRegistry;
pub use rekey::Rekey;
pub use secured::Secured;
pub use send::{Draft, Stamp};
pub use topic::{Scope, TopicAudit};
pub use traces::Traces;

/// One broker for all tests of a test binary. It ends with the process (see [`child`]). A test that stops or freezes
/// its broker starts its own.
pub fn shared_kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(|| Kafka::start_for_long(&[]))
}

/// The proxy of the shared broker. There is only one, so other tests wait until the lock is dropped.
pub fn shared_proxy() -> (MutexGuard<'static, ()>, Proxy) {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, shared_kafka().proxy())
}

/// A second shared broker, which compacts without delay.
pub fn compacting_kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(|| Kafka::start_with(&[("log.cleaner.backoff.ms", "100")]))
}

/// Calls `probe` until it returns a value. Panics with `what` after `limit`.
/// For states that can only be polled.
pub fn wait_until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = monotonic();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sets the clocks of a process that was started with `DEDUPD_CLOCK=file`: how far each is ahead, in ms.
pub fn set_clock(file: &Path, wall_ms: i64, monotonic_ms: i64) {
    let part = file.with_extension("part");
    std::fs::write(&part, format!("{wall_ms} {monotonic_ms}")).unwrap();
    std::fs::rename(part, file).unwrap();
}

/// Text that compression shortens by a quarter at most.
pub fn incompressible(length: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    (0..length).map(|_| random.alphanumeric()).collect()
}

/// The wall clock, in epoch milliseconds.
pub fn now_ms() -> i64 {
    dedupd::clock::wall_ms()
}
