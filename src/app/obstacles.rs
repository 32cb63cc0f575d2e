//! What would keep a spare from taking over, as far as that can be known before. The permission on the transactional id cannot be used without fencing
//! the active instance, and neither the checkpoints nor the metrics of the group show how much memory its windows need.

use std::ops::Range;
use std::sync::Arc;

use super::spare::REQUEST_LIMIT;
use crate::dedupe::PartitionId;
use crate::kafka::GroupMonitor;
use crate::pipeline::{Fatal, StartLogs, WorkerOptions, check_start};
use crate::schemas::Registry;
use crate::store::Lock;

/// What a takeover needs.
pub(super) struct TakeoverNeeds {
    pub options: WorkerOptions,
    pub lock: Arc<Lock>,
    pub registry: Option<Registry>,
    pub group: GroupMonitor,
    /// The number of the worker that takes over.
    pub worker: usize,
}

impl TakeoverNeeds {
    /// Fails with the first obstacle.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_rules().map_err(|fatal| fatal.to_string())?;
        self.group.missing_permissions(REQUEST_LIMIT).into_iter().next().map_or(Ok(()), Err)?;
        self.lock.check_writable().map_err(|error| error.to_string())?;
        self.registry.as_ref().map_or(Ok(()), Registry::check)
    }

    /// Fails when the group's offsets were committed with another configuration. A request without an answer shows nothing: an instance that
    /// cannot describe the group is not ready either.
    pub(super) fn check_rules(&self) -> Result<(), Fatal> {
        let answers = self.group.answers(self.partitions(), REQUEST_LIMIT).unwrap_or_default();
        let committed: Vec<_> = answers.into_iter().flatten().collect();
        check_start(&self.options, &committed, StartLogs::default())
    }

    /// Whether several workers are in the group at the same time.
    pub(super) fn shares_partitions(&self) -> bool {
        !self.options.is_topic_wide()
    }

    /// Returns whether the group does better without this worker, which cannot process a record without the registry. To be called until it does. In
    /// topic scope others may wait outside of the group, where they cannot be seen. In partition scope the offsets of others have to advance:
    /// when nobody reaches the registry, the partitions stay where they are.
    pub(super) fn better_without(self: &Arc<Self>) -> impl FnMut() -> bool + 'static {
        let (needs, mut before) = (Arc::clone(self), None);
        move || {
            if needs.registry.as_ref().is_none_or(|registry| registry.check().is_ok()) {
                before = None;
                return false;
            }
            let committed = needs.group.committed(needs.partitions(), REQUEST_LIMIT).ok();
            let advances = before.is_some() && committed.is_some() && before != committed;
            before = committed.or(before.take());
            !needs.shares_partitions() || advances
        }
    }

    fn partitions(&self) -> Range<PartitionId> {
        0..self.options.partition_counts.count()
    }
}
