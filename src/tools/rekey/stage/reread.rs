//! Partitions that are read again from their next record on: after the wait for a schema, and when records stop arriving.

use std::time::Duration;

use super::RekeyLoop;
use crate::clock;
use crate::kafka::SourceLog;
use crate::metrics::Stall;
use crate::pipeline::Fetching;
use crate::ports::Failure;

/// How often the partitions are compared with the ends of their logs.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

impl RekeyLoop<'_> {
    /// Continues with the partitions whose schema is known now.
    pub(super) fn resume_waiting(&mut self) -> Result<(), Failure> {
        if self.logs.waiting_mut().next().is_none() {
            return Ok(());
        }
        self.schemas = self.rule.schemas.known();
        for (log, schema) in self.logs.waiting_mut() {
            if self.schemas.has(schema) {
                self.reader.read_again(log.start())?;
                log.schema = None;
                tracing::info!(log = %log.log, offset = log.next, %schema, "schema known; the partition continues");
            }
        }
        Ok(())
    }

    /// Assigns stalled partitions again inside the client. It sometimes loses the fetcher of a partition, or records that it has
    /// fetched, and reports no error. What is in flight of the partition stays in flight.
    pub(super) fn wake_stalled(&mut self) -> Result<(), Failure> {
        if self.times.compared.elapsed() < COMPARE_INTERVAL {
            return Ok(());
        }
        self.times.compared = clock::monotonic();
        let reader = self.reader;
        for (start, seen, stall) in self.logs.stalled(self.times.created.elapsed(), |log| reader.end(log)) {
            log_stall(&start.0, seen, stall);
            reader.read_again(start)?;
        }
        Ok(())
    }
}

fn log_stall(log: &SourceLog, seen: Fetching, stall: Stall) {
    let Fetching { next, fetched_end, log_end } = seen;
    match stall {
        Stall::NotFetched => tracing::warn!(
            %log,
            next,
            fetched_end,
            log_end,
            "the client has stopped fetching a partition; reassigning it"
        ),
        // There may be only transaction markers and aborted records, which no fetch delivers.
        Stall::NotDelivered => {
            tracing::info!(%log, next, log_end, "no records delivered although the log has more; refetching");
        }
    }
}
