//! The reaction to errors of the poll loop: each error carries its remedy.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::WindowId;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::Parts;
use crate::ports::{Failure, ProducerLife, Remedy, Source, StoreError};

impl<W: WorkerPorts> Parts<W> {
    /// Applies the remedy of an error. Returns an error only when the process has to end.
    pub(crate) fn remedy(&mut self, source: &mut W::Source, error: WorkerError) -> Result<(), Fatal> {
        let error = match error {
            WorkerError::Store(StoreError::InFilter(window)) => self.clear_filter(source, window),
            other => other,
        };
        let failed = match error {
            WorkerError::Fatal(fatal) => return Err(fatal),
            WorkerError::Store(StoreError::LeaseLost(window)) => self.ctx.lease_lost(source, window),
            WorkerError::Store(error) => {
                return Err(Fatal::State(format!(
                    "{error}; restart: damaged state is quarantined and rebuilt from topic {}",
                    self.ctx.options.state
                )));
            }
            WorkerError::Kafka(failed) => source.explained(failed),
        };
        let now = self.ctx.clock.elapsed();
        self.ctx.report.failed(&failed, now);
        if failed.remedy != Remedy::Retry {
            self.committer.transaction.failed(now, self.ctx.options.transaction_timeout);
        }
        let applied = match failed.remedy {
            Remedy::Stop => return Err(Fatal::Operator(failed.what)),
            Remedy::Retry => {
                self.unreachable = true;
                self.ctx.clock.rest(Duration::from_millis(20));
                Ok(())
            }
            Remedy::Abort => self.abort_and_rewind(source, &failed),
            Remedy::Renew if !self.ctx.options.keeps(Safeguard::Renewal) => {
                self.abort_and_rewind(source, &failed)
            }
            Remedy::Renew => self.renew(source),
            Remedy::Rejoin => {
                self.membership.replaced(&self.ctx.options, now, &failed)?;
                self.rejoin(source)
            }
            Remedy::Fenced => {
                self.membership.fenced(&self.ctx.options, now, &self.committer.transaction, &failed)?;
                self.renew(source)
            }
        };
        match applied {
            Ok(()) => Ok(()),
            Err(WorkerError::Kafka(second)) if second.remedy != Remedy::Stop => {
                let now = self.ctx.clock.elapsed();
                self.ctx.report.failed(&second, now);
                // What has replaced a member fences its producer too, and counts already.
                if second.remedy == Remedy::Fenced && failed.remedy != Remedy::Rejoin {
                    self.membership.fenced(&self.ctx.options, now, &self.committer.transaction, &second)?;
                }
                self.renew(source).or_else(fatal_only)
            }
            Err(other) => fatal_only(other),
        }
    }

    /// Removes a filter that cannot lose single owners, with the local state of its journal, which is restored from
    /// the state topic. Returns the error that remains.
    fn clear_filter(&mut self, source: &W::Source, window: WindowId) -> WorkerError {
        match self.ctx.clear_filter(window) {
            Ok(()) => {
                self.ctx.drop_windows(source, window.journal());
                Failure::new(Remedy::Abort, StoreError::InFilter(window).to_string()).into()
            }
            Err(error) => error.into(),
        }
    }

    fn abort_and_rewind(&mut self, source: &W::Source, failed: &Failure) -> Result<(), WorkerError> {
        if let Some(rejected) = failed.rejected {
            self.ctx.isolate_rejected(rejected, failed);
        }
        self.committer.abort_open(&mut self.ctx, source)?;
        let pause = if failed.rejected.is_some() { Duration::ZERO } else { self.committer.pace.backoff() };
        self.ctx.relocate_all(source, pause)
    }

    /// The outcome of the transaction is unknown. A new producer settles it, and C then shows whether it was
    /// committed.
    fn renew(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        self.committer.sink.discard();
        self.torn.replace();
        self.ctx.journals.uncheck_all();
        if self.committer.transaction.is_open() {
            self.committer.undecided.count_ended(&mut self.ctx, &mut self.committer.transaction);
        }
        self.committer.transaction.close();
        let pause = self.committer.pace.backoff();
        self.ctx.relocate_all(source, pause)
    }
}

/// Returns what ends the process; logs any other error.
fn fatal_only(error: WorkerError) -> Result<(), Fatal> {
    match error {
        WorkerError::Fatal(fatal) => Err(fatal),
        // The next iteration takes the windows again.
        WorkerError::Store(StoreError::LeaseLost(_)) => Ok(()),
        WorkerError::Store(error) => Err(Fatal::State(error.to_string())),
        // No record was processed; the next iteration retries from the committed offsets.
        WorkerError::Kafka(failed) if failed.remedy != Remedy::Stop => {
            tracing::warn!(%failed, "recovery failed; retrying from the committed offsets");
            Ok(())
        }
        WorkerError::Kafka(failed) => Err(Fatal::Operator(failed.what)),
    }
}
