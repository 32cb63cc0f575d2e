//! Records that arrive after records with higher offsets: what the operator reads.

use crate::dedupe::{Coordinates, Offset};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::ports::{Failure, Remedy};

/// Shows the order of records in a batch. Java consumers skip a record that follows a higher offset, too.
const DUMP: &str = "kafka-dump-log.sh --deep-iteration --files SEGMENT on the leader shows whether the offsets of a batch there do not \
                    increase: every consumer skips such a record";

/// A record arrived that had been skipped as a gap in the log.
pub(super) fn skipped_record(at: Coordinates, committed: Offset, raw: &str) -> WorkerError {
    let problem = format!(
        "record {at} of topic {raw} arrived after records with higher offsets, and had been skipped as a gap in the log"
    );
    if at.offset >= committed {
        let what = format!("{problem}; aborting the transaction and reading again from offset {committed}");
        return Failure::new(Remedy::Abort, what).into();
    }
    Fatal::Operator(format!(
        "{problem}; the later records are committed, so this record would be lost. {DUMP}. To continue without it, restart; \
         otherwise please report this bug. To write the record, stop dedupd, set the group's offset for the partition to {} \
         and start once with group.on_rewind = \"reemit\"",
        at.offset
    ))
    .into()
}

/// A record has always arrived after the one at `at`. What is before both is committed.
pub(super) fn late_record(late: Offset, at: Coordinates, raw: &str) -> WorkerError {
    let Coordinates { partition, offset } = at;
    Fatal::Operator(format!(
        "record {partition}@{late} of topic {raw} always arrives after record {at}; the records before both are committed. {DUMP}. To \
         continue without it, stop dedupd, and set the group's offset for the partition to {offset} with \
         kafka-consumer-groups.sh --reset-offsets"
    ))
    .into()
}
