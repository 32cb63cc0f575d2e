//! How close retention has come to what was not read yet: where the raw logs begin, asked now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::supervisor::pause;
use super::{Ended, Service};
use crate::cli::Exit;
use crate::clock;
use crate::kafka::{LogStarts, Settings};
use crate::metrics::Status;

/// How often is asked. Retention deletes whole segments, every few minutes at most.
const EVERY: Duration = Duration::from_secs(30);
/// How long an answer may take; well below the time that a stop may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How often is looked whether partitions have come.
const LOOK: Duration = Duration::from_secs(1);

/// Asks until `stop` is set, on a thread of its own.
pub(super) fn watch(
    settings: &Settings,
    service: &Service,
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<()>, Ended> {
    let starts = LogStarts::new(settings).map_err(|failed| Ended::new(Exit::Operator, failed.what))?;
    let (status, stop) = (Arc::clone(&service.status), Arc::clone(stop));
    let work = move || ask(&starts, &status, &stop);
    std::thread::Builder::new()
        .name("retention".to_owned())
        .spawn(work)
        .map_err(|e| Ended::failed(format!("cannot start a thread: {e}; raise the limit on processes")))
}

fn ask(starts: &LogStarts, status: &Status, stop: &AtomicBool) {
    let mut asked = BTreeSet::new();
    let mut last = clock::monotonic();
    let mut told = false;
    while !stop.load(Ordering::Acquire) {
        let owned: BTreeSet<u32> =
            status.workers().iter().flat_map(|worker| &worker.partitions).map(|it| it.partition).collect();
        if !owned.is_subset(&asked) || last.elapsed() >= EVERY {
            match starts.of(owned.iter().copied(), ANSWER) {
                Ok(starts) => {
                    status.note_log_starts(starts);
                    told = false;
                }
                // Not our trouble to report while the workers have the same; but once, and not every time.
                Err(failed) if !told => {
                    tracing::warn!("{failed}; dedupd_raw_start_offset keeps its last value");
                    told = true;
                }
                Err(_) => {}
            }
            (asked, last) = (owned, clock::monotonic());
        }
        pause(LOOK, stop);
    }
}
