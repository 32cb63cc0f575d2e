//! A record that the broker rejects: isolated from the others, retried for a while, then handled by policy
//! ([`Rejections`](crate::pipeline::partition::rejections::Rejections)).

use crate::clock::Clock;
use crate::dedupe::Coordinates;
use crate::metrics::Outcome;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::OnPoison;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::rejections::Refusal;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::worker::step::{RawOf, Step};
use crate::ports::{Failure, OutputTopic, Reason, Record, RejectedRecords, Side, Sink};

impl<W: WorkerPorts> Context<W> {
    /// The broker rejected records of a partition. The records before the lowest rejected one are sent next, without
    /// it; then that record is sent alone. When it is accepted, transactions grow again until the next rejection.
    pub(crate) fn isolate_rejected(&mut self, rejected: RejectedRecords, failed: &Failure) {
        let now = self.clock.elapsed();
        // A batch of clean has records of one raw partition, one of a side topic of several.
        let shares_batch = |p: &Partition| rejected.by != OutputTopic::Clean || p.id == rejected.partition;
        let open = self.partitions.iter().filter(|p| shares_batch(p)).filter_map(|p| p.open.as_ref());
        // Where the partitions were stopped meanwhile, none shows what was sent.
        let is_alone = open.map(|open| open.records).sum::<usize>() == 1;
        let Some(partition) = self.partitions.get_mut(rejected.partition) else { return };
        // The range of rejected offsets is not enough: the broker may have reported one record of a rejected batch
        // before the others.
        if !is_alone {
            return partition.rejections.suspect(rejected.first);
        }
        let at = Coordinates { partition: rejected.partition, offset: rejected.first };
        let error = failed.unretried();
        // Without the place, which is named already.
        let why = error.split_once(": ").map_or(error, |(_, why)| why);
        if let Some(description) =
            partition.rejections.schedule_retry(at, now, self.options.poison_retry, why)
        {
            let policy = self.options.on_poison.as_str();
            tracing::warn!("{description}; after the last attempt state.on_poison ({policy}) applies");
        } else {
            partition
                .rejections
                .exhaust(rejected.first, Refusal { error: error.to_owned(), by: rejected.by });
        }
    }
}

impl<W: WorkerPorts> Step<'_, W> {
    /// Why the topic certainly rejects the record, while rejected records of the partition follow the policy at once.
    pub(crate) fn certain_refusal(&mut self, by: OutputTopic, record: &RawOf<'_, W>) -> Option<Refusal> {
        let error = if self.at_once { self.sink.certain_rejection(by, record) } else { None };
        error.map(|error| {
            tracing::debug!(record = %record.coordinates(), by = %by, "rejected without being sent");
            Refusal { by, error }
        })
    }

    /// Handles a record that a topic does not accept, according to the policy.
    pub(crate) fn apply_rejection_policy(
        &mut self,
        partition: &mut Partition,
        record: &RawOf<'_, W>,
        Refusal { error, by }: &Refusal,
    ) -> Result<Outcome, WorkerError> {
        match self.options.on_poison {
            OnPoison::Drop => Ok(Outcome::Rejected),
            OnPoison::DeadLetter if *by != OutputTopic::DeadLetter => {
                let reason = Reason::new("rejected", error.clone());
                self.divert(partition, Side::DeadLetter, record, &reason)?;
                Ok(Outcome::DeadLetter)
            }
            policy => Err(Fatal::Operator(format!(
                "record {} of topic {} cannot be written: {error}; remove the cause, or change state.on_poison (\"{}\")",
                record.coordinates(),
                self.options.raw,
                policy.as_str()
            ))
            .into()),
        }
    }
}
