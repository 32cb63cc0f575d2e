//! One line of the log for each time when the state of all partitions is complete.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::monotonic;
use crate::dedupe::coordinates::ranges;
use crate::metrics::{Metrics, RestoreSource, Role, Status};

/// Interval between two looks at the status.
const INTERVAL: Duration = Duration::from_millis(250);

/// Logs when this process becomes ready, and when it is ready with other partitions than before. Runs until it is aborted.
pub(super) async fn log_readiness(status: Arc<Status>, metrics: Metrics) {
    let restored = |source| metrics.restored_ids(source).get();
    let (mut logged, mut since) = (None, monotonic());
    let (mut local, mut topic) = (0, 0);
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        let shown = status.read(|it| {
            let mut owned: Vec<_> = it.partitions().map(|it| it.partition).collect();
            owned.sort_unstable();
            let ids: u64 = it.partitions().filter_map(|it| it.window_ids).sum();
            it.readiness().ready.then_some((owned, ids, it.role().0 == Role::Spare))
        });
        let Some((owned, ids, is_spare)) = shown else {
            if logged.take().is_some() {
                since = monotonic();
                (local, topic) = (restored(RestoreSource::Local), restored(RestoreSource::StateTopic));
            }
            continue;
        };
        // A member is ready before the group has assigned partitions to it.
        if logged.as_ref() == Some(&owned) || owned.is_empty() && !is_spare {
            continue;
        }
        let now = (restored(RestoreSource::Local), restored(RestoreSource::StateTopic));
        tracing::info!(
            is_spare,
            partitions = %ranges(owned.iter().copied()),
            ids,
            ids_from_disk = now.0.saturating_sub(local),
            ids_from_topic = now.1.saturating_sub(topic),
            took_ms = since.elapsed().as_millis(),
            "ready"
        );
        (local, topic, logged, since) = (now.0, now.1, Some(owned), monotonic());
    }
}
