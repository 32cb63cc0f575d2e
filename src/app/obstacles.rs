//! What would keep a spare from taking over, as far as that can be known before. The permission on the transactional id cannot be used without fencing
//! the active instance, and neither the checkpoints nor the metrics of the group show how much memory its windows need.

use std::sync::Arc;

use super::spare::REQUEST_LIMIT;
use crate::dedupe::Checkpoint;
use crate::kafka::GroupMonitor;
use crate::pipeline::WorkerOptions;
use crate::schemas::Registry;
use crate::store::Lock;

/// What a takeover needs.
pub(super) struct TakeoverNeeds {
    pub options: WorkerOptions,
    pub lock: Arc<Lock>,
    pub registry: Option<Registry>,
}

impl TakeoverNeeds {
    /// Fails with the first obstacle. A request without an answer shows none: a spare that cannot describe the group is not ready either.
    pub(super) fn check(&self, group: &GroupMonitor) -> Result<(), String> {
        let partitions = 0..self.options.partition_limit.count();
        for answer in group.checkpoints(partitions, REQUEST_LIMIT).unwrap_or_default() {
            let checkpoint = Checkpoint::parse(&answer.metadata);
            let checked = self.options.check_metadata(&answer);
            let rules =
                checked.and_then(|()| self.options.changed_rules(checkpoint.as_ref(), answer.partition));
            rules.map_err(|fatal| fatal.to_string())?;
        }
        group.missing_permissions(REQUEST_LIMIT).into_iter().next().map_or(Ok(()), Err)?;
        self.lock.check_writable().map_err(|error| error.to_string())?;
        self.registry.as_ref().map_or(Ok(()), Registry::check)
    }
}
