//! The wait for a broker at the start of `run` and of `rekey`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{ExitError, supervisor::pause};
use crate::clock::monotonic;
use crate::kafka::CheckError;

/// How long a broker may reject the connection before the rejection counts as final: one of several brokers may be misconfigured, or
/// may not have received a new user yet.
const REJECTED: Duration = Duration::from_secs(8);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Repeats the check until a broker answers. Each reason is logged once, and published. `None` when a stop is requested meanwhile.
pub(crate) fn await_broker<T>(
    check: impl Fn() -> Result<T, CheckError>,
    publish: impl Fn(&str),
    stop: &AtomicBool,
) -> Result<Option<T>, ExitError> {
    let (mut rejected_since, mut logged) = (None, String::new());
    while !stop.load(Ordering::Acquire) {
        let why = match check() {
            Ok(checked) => {
                if !logged.is_empty() {
                    tracing::info!("the broker is reachable");
                }
                return Ok(Some(checked));
            }
            Err(unreachable @ CheckError::Unreachable(_)) => {
                rejected_since = None;
                unreachable.to_string()
            }
            Err(rejected @ CheckError::Rejected(_))
                if rejected_since.get_or_insert_with(monotonic).elapsed() < REJECTED =>
            {
                rejected.to_string()
            }
            Err(failed) => return Err(failed.into()),
        };
        if stop.load(Ordering::Acquire) {
            break;
        }
        publish(&format!("waits for a broker: {why}"));
        if why != logged {
            tracing::warn!("{why}; retrying");
            logged = why;
        }
        pause(PAUSE, stop);
    }
    Ok(None)
}
