//! Partitions whose next record needs a schema that is not known: paused while the others continue, and read again once the
//! schema is known.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Coordinates, Offset, SchemaId};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::{SchemaCheck, SchemaWait};
use crate::pipeline::ports::WorkerPorts;
use crate::ports::Source;
use crate::schemas::SharedSchemas;

/// The schemas that the worker shares with others, and those that its partitions wait for.
#[derive(Debug, Default)]
pub(crate) struct SchemaWaits {
    pub(crate) shared: SharedSchemas,
    /// When they are looked at again.
    check: SchemaCheck,
    /// Since when no partition has advanced while one waits for a schema: monotonic time, and the sum of the next offsets.
    blocked: Option<(Duration, Offset)>,
}

impl SchemaWaits {
    /// Reads with these schemas.
    pub fn new(shared: SharedSchemas) -> Self {
        Self { shared, ..Self::default() }
    }

    /// The partition of this record waits for a schema. The record is read again.
    pub(crate) fn wait<W: WorkerPorts>(
        &self,
        ctx: &mut Context<W>,
        source: &W::Source,
        at: Coordinates,
        id: SchemaId,
    ) -> Result<(), WorkerError> {
        let Some(partition) = ctx.partitions.record_mut(at.partition) else { return Ok(()) };
        // A record of an earlier position is not processed.
        if at.offset < partition.next {
            return Ok(());
        }
        partition.schema = Some(SchemaWait::begin(&self.shared, id, at.partition, at.offset));
        source.pause(&[at.partition]).map_err(|failed| WorkerError::from(failed).rewinding())
    }

    /// For how long all partitions have been running, none of them has advanced, and one waits for a schema.
    pub(crate) fn blocked_for(&self, now: Duration) -> Duration {
        self.blocked.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(since))
    }

    /// Counts the time from now on.
    pub(crate) fn unblock(&mut self) {
        self.blocked = None;
    }

    fn note_blocked<W: WorkerPorts>(&mut self, ctx: &Context<W>, now: Duration) {
        let reached = ctx.partitions.iter().map(|it| Some(it.next).filter(|_| it.is_started));
        let reached: Option<Offset> = reached.sum();
        let waits = ctx.partitions.iter().any(|partition| partition.schema.is_some());
        let is_same = |(_, before): &(Duration, Offset)| Some(*before) == reached;
        self.blocked =
            reached.filter(|_| waits).map(|reached| self.blocked.filter(is_same).unwrap_or((now, reached)));
    }

    /// Continues with the partitions whose schema is known now.
    pub(crate) fn resume<W: WorkerPorts>(
        &mut self,
        ctx: &mut Context<W>,
        source: &W::Source,
    ) -> Result<(), WorkerError> {
        let now = ctx.clock.elapsed();
        if !self.check.is_due(self.shared.version(), now) {
            return Ok(());
        }
        ctx.schemas = self.shared.known();
        ctx.report.unregistered(self.shared.note());
        self.note_blocked(ctx, now);
        let Context { partitions, schemas, .. } = ctx;
        for partition in partitions.started_mut() {
            let Some(wait) = &mut partition.schema else { continue };
            if !wait.is_over(&self.shared, schemas, partition.id, partition.next) {
                continue;
            }
            let (from, epoch) = partition.position();
            let sought = source.seek_behind(partition.id, from, epoch);
            sought.map_err(|failed| WorkerError::from(failed).rewinding())?;
            partition.start();
        }
        Ok(())
    }
}
