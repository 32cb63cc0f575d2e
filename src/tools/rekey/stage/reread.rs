//! Partitions that are read again from their next record on: after the wait for a schema, and when records stop arriving.

use tracing::field::display;

use super::RekeyLoop;
use crate::pipeline::{COMPARE_INTERVAL, is_due};
use crate::ports::Failure;

impl RekeyLoop<'_> {
    /// Continues with the partitions whose schema is known now.
    pub(super) fn resume_waiting(&mut self) -> Result<(), Failure> {
        let (version, now) = (self.rule.schemas.version(), self.began.elapsed());
        if self.logs.waiting_mut().next().is_none() || !self.schema_check.is_due(version, now) {
            return Ok(());
        }
        self.schemas = self.rule.schemas.known();
        for log in self.logs.waiting_mut() {
            let Some(wait) = &mut log.schema else { continue };
            if wait.is_over(&self.rule.schemas, &self.schemas, display(&log.log), log.next) {
                self.reader.read_again(log.start())?;
                log.schema = None;
            }
        }
        Ok(())
    }

    /// Assigns stalled partitions again inside the client. It sometimes loses the fetcher of a partition, or records that it has
    /// fetched, and reports no error. What is in flight of the partition stays in flight.
    pub(super) fn wake_stalled(&mut self) -> Result<(), Failure> {
        let (now, reader) = (self.began.elapsed(), self.reader);
        if !is_due(&mut self.last.compared, now, COMPARE_INTERVAL) {
            return Ok(());
        }
        for (start, seen, stall) in self.logs.stalled(now, |log| reader.end(log)) {
            seen.log(display(&start.0), stall);
            reader.read_again(start)?;
        }
        Ok(())
    }
}
