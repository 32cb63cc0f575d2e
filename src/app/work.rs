//! The work of a process, in a thread of its own: it ends by itself, or soon after a stop is requested.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::ExitError;
use super::supervisor::FirstFailure;
use crate::clock::monotonic;

/// Time limit of a stop: committing, leaving the group, and closing the local store.
const STOP: Duration = Duration::from_secs(9);

/// What the messages about the thread say.
pub(crate) struct Work {
    /// The name of the thread.
    pub name: &'static str,
    /// What a stop does before the group is left.
    pub stopping: &'static str,
    /// Who does not end in time, and what becomes of its records.
    pub late: [&'static str; 2],
    /// Why the process ends, where that is known before the work has ended.
    pub first: FirstFailure,
}

impl Work {
    /// Completes when `work` ends, and at the latest [`STOP`] after `shutdown`, which sets `stop`, or after `stop` is set.
    pub async fn run(
        self,
        stop: &AtomicBool,
        shutdown: impl Future<Output = ()>,
        work: impl FnOnce() -> Result<(), ExitError> + Send + 'static,
    ) -> Result<(), ExitError> {
        let Self { name, stopping, late: [who, records], first } = self;
        let (sender, mut result) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(work())));
        thread.map_err(|e| {
            ExitError::failed(format!(
                "the {name} thread cannot be started: {e}; raise the limit on processes"
            ))
        })?;
        let mut since = None;
        let ended = tokio::select! {
            ended = &mut result => Ok(ended),
            () = shutdown => {
                tracing::info!("stopping: {stopping} and leaving the group; a second signal ends at once");
                stop.store(true, Ordering::Release);
                since = Some(monotonic());
                tokio::time::timeout(STOP, result).await
            }
            () = stopped(stop) => tokio::time::timeout(STOP, result).await,
        };
        // A thread that hangs in a call of the operating system may never end.
        let late = || ExitError::failed(format!("{who} did not stop within {} s; {records}", STOP.as_secs()));
        let ended = ended.unwrap_or_else(|_| Ok(Err(first.get().cloned().unwrap_or_else(late))));
        let panicked =
            || format!("the {name} thread panicked; the log above has the place. Please report this bug");
        let ended = ended.unwrap_or_else(|_| Err(ExitError::failed(panicked())));
        if let (Ok(()), Some(since)) = (&ended, since) {
            tracing::info!(took_ms = since.elapsed().as_millis(), "stopped");
        }
        ended
    }
}

/// Completes when the end of the work is requested.
async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
