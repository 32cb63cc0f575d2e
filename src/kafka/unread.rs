//! Reading errors that are about the log of one partition: bytes that are damaged, history that was taken back.

use super::native::Unread;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Remedy};

/// A batch of a topic whose bytes are not what was written. `again` says that a second reading found the same. Until
/// then it may have been damaged on the way, and is read once more.
pub(super) fn damaged(topic: &str, (partition, offset): (i32, i64), unread: &Unread, again: bool) -> Failure {
    let names = format!(
        "partition {partition} of topic {topic} holds a damaged batch at offset {offset} ({}: {})",
        unread.code, unread.reason
    );
    if !again {
        let what = format!("{names}; reading it once more");
        return Failure { remedy: Remedy::Abort, what, refused: None };
    }
    let what = format!(
        "{names}; read again with the same result: nothing of it is used and nothing is skipped. kafka-dump-log.sh \
         --deep-iteration --files SEGMENT on the broker that leads the partition shows the batch and the offset after it; \
         let a replica lead that is not damaged (kafka-leader-election.sh), and have the damaged one copied from it. To give \
         a batch of the raw topic up, set the group's offset, when it stands at {offset}, to the one after the batch with \
         kafka-consumer-groups.sh --reset-offsets while dedupd is stopped"
    );
    Failure { remedy: Remedy::Stop, what, refused: None }
}

/// Where the part of a partition's log ends that is as we knew it, when the client found by leader epochs that what came
/// after it was taken back. The client says so only in words (`rdkafka_offset.c`).
pub(super) fn truncated(unread: &Unread) -> Option<(PartitionId, Offset)> {
    let (partition, _) = unread.at?;
    let (_, rest) = unread.reason.split_once("broker end offset is ")?;
    let end: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((u32::try_from(partition).ok()?, end.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;

    fn unread(reason: &str) -> Unread {
        let code = RDKafkaErrorCode::AutoOffsetReset;
        Unread { code, fatal: false, at: Some((3, -1001)), reason: reason.to_owned() }
    }

    #[test]
    fn the_end_of_a_truncated_log_is_read_from_the_words_of_the_client() {
        let words = "Partition log truncation detected at offset 100 (leader epoch 5): broker end offset is 60 (offset leader \
                     epoch 5). Reset to INVALID.: Local: Log truncation detected (broker 1)";
        assert_eq!(truncated(&unread(words)), Some((3, 60)));
        let unknown = "No epoch found less or equal to offset 9 (leader epoch 5): broker end offset is -1 (offset leader";
        for words in ["", "fetch failed due to requested offset not available on the broker", unknown] {
            assert_eq!(truncated(&unread(words)), None, "{words}");
        }
        assert_eq!(truncated(&Unread { at: None, ..unread(words) }), None);
    }

    #[test]
    fn a_damaged_batch_is_read_once_more_and_then_stops() {
        let (first, second) =
            (damaged("raw", (3, 7), &unread("crc"), false), damaged("raw", (3, 7), &unread("crc"), true));
        assert_eq!((first.remedy, second.remedy), (Remedy::Abort, Remedy::Stop));
        assert!(
            second.what.contains("partition 3 of topic raw holds a damaged batch at offset 7"),
            "{second}"
        );
    }
}
