//! Read errors that are about the log of one partition: damaged batches and log truncation.

use rdkafka::error::RDKafkaErrorCode;

use super::error::{failure, is_damage};
use super::native::ReadError;
use super::partitions::coordinates;
use crate::dedupe::{Coordinates, PartitionId};
use crate::ports::{Failure, Remedy, Truncation};

/// A batch with damaged bytes, for a message.
pub(super) fn damaged_batch(
    topic: &str,
    Coordinates { partition, offset }: Coordinates,
    error: &ReadError,
) -> String {
    let ReadError { code, reason, .. } = error;
    format!(
        "partition {partition} of topic {topic} holds a damaged batch at offset {offset} ({code}: {reason})"
    )
}

/// The failure for a batch with damaged bytes. `is_second` means that a second read had the same result. After the first
/// read the batch is read again, because it may have been damaged in transit.
pub(super) fn damaged(topic: &str, at: Coordinates, error: &ReadError, is_second: bool) -> Failure {
    let batch = damaged_batch(topic, at, error);
    if !is_second {
        let what = format!("{batch}; reading it again");
        return Failure::new(Remedy::Abort, what);
    }
    let is_large = match error.code {
        RDKafkaErrorCode::BadCompression => {
            "; its records may also be larger, decompressed, than receive.message.max.bytes of the client (300 MB), which can be set below \
             [kafka.properties]"
        }
        _ => "",
    };
    let what = format!(
        "{batch}; a second read had the same result: none of its records is used, and none is skipped{is_large}. \
         kafka-dump-log.sh --deep-iteration --files SEGMENT on the leader of the partition shows the batch and the offset \
         after it; elect a replica that is not damaged as leader (kafka-leader-election.sh), and let the damaged replica \
         copy from it. To skip a batch of the raw topic, wait until the committed offset is {} or higher, stop \
         dedupd, and set the offset to the one after the batch with kafka-consumer-groups.sh --reset-offsets",
        at.offset
    );
    Failure { damaged: Some(at), ..Failure::new(Remedy::Stop, what) }
}

/// Why a record cannot be copied. Only the client parses headers; the broker accepts more than it does.
pub(super) fn unreadable_headers(code: RDKafkaErrorCode) -> String {
    format!("its headers cannot be read ({code}): one has an invalid length, or there are more than 100,000")
}

/// The failure for a record of raw with such headers.
pub(super) fn unreadable(at: Coordinates, code: RDKafkaErrorCode) -> Failure {
    Failure { damaged: Some(at), ..Failure::new(Remedy::Stop, unreadable_headers(code)) }
}

/// The failure of a reader that has no other use for a damaged batch: the client would skip it.
pub(super) fn failure_of(error: &ReadError, topic: &str, doing: &str) -> Failure {
    match error.at.filter(|_| is_damage(error.code)) {
        Some((partition, offset)) => damaged(topic, coordinates(partition, offset), error, true),
        None => failure(doing, &error.error()),
    }
}

/// The partition of an error about a position outside of the log, and where that log was truncated. The client reports the
/// offset that it found by leader epochs only in the error text (`rdkafka_offset.c`).
pub(super) fn truncated(error: &ReadError) -> Option<(PartitionId, Truncation)> {
    let (partition, _) = error.at?;
    let end = error.reason.split_once("broker end offset is ").and_then(|(_, rest)| {
        let end: String = rest.chars().take_while(char::is_ascii_digit).collect();
        end.parse().ok()
    });
    Some((u32::try_from(partition).ok()?, end.map_or(Truncation::Unknown, Truncation::At)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Coordinates = Coordinates { partition: 3, offset: 7 };

    fn read_error(reason: &str) -> ReadError {
        let code = RDKafkaErrorCode::AutoOffsetReset;
        ReadError {
            code,
            fatal: false,
            at: Some((3, -1001)),
            topic: String::new(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn the_end_of_a_truncated_log_is_parsed_from_the_error_text_of_the_client() {
        let text = "Partition log truncation detected at offset 100 (leader epoch 5): broker end offset is 60 (offset leader \
                     epoch 5). Reset to INVALID.: Local: Log truncation detected (broker 1)";
        assert_eq!(truncated(&read_error(text)), Some((3, Truncation::At(60))));
        let unknown = "No epoch found less or equal to offset 9 (leader epoch 5): broker end offset is -1 (offset leader";
        for text in ["", "fetch failed due to requested offset not available on the broker", unknown] {
            assert_eq!(truncated(&read_error(text)), Some((3, Truncation::Unknown)), "{text}");
        }
        assert_eq!(truncated(&ReadError { at: None, ..read_error(text) }), None);
    }

    #[test]
    fn a_damaged_batch_is_read_again_and_then_stops_the_process() {
        let (first, second) =
            (damaged("raw", AT, &read_error("crc"), false), damaged("raw", AT, &read_error("crc"), true));
        assert_eq!((first.remedy, second.remedy), (Remedy::Abort, Remedy::Stop));
        assert!(
            second.what.contains("partition 3 of topic raw holds a damaged batch at offset 7"),
            "{second}"
        );
    }
}
