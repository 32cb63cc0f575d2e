//! Records that go to a side topic (dead-letter or duplicates) instead of the clean topic.

use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};

use super::client_config::{ACTIVE_ID, Settings};
use super::ends::partitions_of;
use super::native::Message;
use super::partitions::kafka_partition;
use super::topic::TopicHandle;
use crate::dedupe::{Coordinates, PartitionId};
use crate::ports::Reason;

const TOPIC: &str = "dedupd.topic";
const PARTITION: &str = "dedupd.partition";
const OFFSET: &str = "dedupd.offset";
const WRITER: &str = "dedupd.writer";
const OUTSIDE: &str = "dedupd.outside";

/// A dead-letter or duplicates topic. Its number of partitions is independent of the raw topic.
pub(super) struct SideTopic {
    topic: TopicHandle,
    name: String,
    /// 0 until it is read from the topic's metadata.
    partitions: u32,
}

impl SideTopic {
    pub(super) fn open<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        Ok(Self { topic: TopicHandle::open(client, name)?, name: name.to_owned(), partitions: 0 })
    }

    /// Reads the number of partitions from the topic's metadata, once.
    pub(super) fn load_partitions<C: ClientContext>(
        &mut self,
        client: &Client<C>,
        wait: Duration,
    ) -> Result<(), KafkaError> {
        if self.partitions > 0 {
            return Ok(());
        }
        let partitions = partitions_of(client, &self.name, wait)?.len();
        self.partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        if partitions > 0 {
            Ok(())
        } else {
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition))
        }
    }

    /// The partition for records of a raw partition. When the side topic has as many partitions as raw, no two workers
    /// write to the same one. That matters because each worker waits for open transactions in the partitions that it has
    /// written to.
    pub(super) fn target_of(&self, raw: PartitionId) -> (&TopicHandle, i32) {
        (&self.topic, kafka_partition(raw % self.partitions.max(1)))
    }
}

/// The headers with the reason and the raw coordinates of a record; they are appended to its own headers. `writer` is the
/// transactional id: after a restart it is the only way to recognise the records that the predecessor left open.
pub(super) fn reason_headers(
    at: Coordinates,
    reason: &Reason,
    raw: &str,
    writer: Option<&str>,
) -> Vec<(&'static str, String)> {
    let always = [
        ("dedupd.reason", reason.code.to_owned()),
        ("dedupd.detail", reason.detail.clone()),
        (TOPIC, raw.to_owned()),
        (PARTITION, at.partition.to_string()),
        (OFFSET, at.offset.to_string()),
    ];
    let optional = [
        ("dedupd.owner_partition", reason.owner.map(|owner| owner.partition.to_string())),
        ("dedupd.owner", reason.owner.map(|owner| owner.offset.to_string())),
        ("dedupd.owner_time", reason.owner_ms.map(|ms| ms.to_string())),
        ("dedupd.slice", reason.slice_ms.map(|ms| ms.to_string())),
        (WRITER, writer.map(str::to_owned)),
    ];
    let optional = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
    always.into_iter().chain(optional).collect()
}

/// The header of a side record that is written outside of any transaction. It follows the headers of the same writer.
pub(super) fn outside_header() -> (&'static str, String) {
    (OUTSIDE, "true".to_owned())
}

/// The headers of a record that is not a copy of a raw record.
pub(super) fn writer_header(writer: &str) -> OwnedHeaders {
    OwnedHeaders::new().insert(Header { key: WRITER, value: Some(writer) })
}

/// Who wrote a record of a side topic, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SideOrigin {
    /// Transactional id; `None` for another program, and for another group.
    pub(super) writer: Option<String>,
    /// The record of the raw topic that it is a copy of.
    pub(super) raw: Option<Coordinates>,
    /// Whether it was written outside of any transaction.
    pub(super) is_outside: bool,
}

/// The origin of a record of a side topic.
pub(super) fn origin(message: &Message<'_>, settings: &Settings) -> SideOrigin {
    origin_from(message.headers(), &settings.group, &settings.raw)
}

/// A record that was copied from a side topic into raw already has such headers; the last ones count.
fn origin_from<'a>(
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    group: &str,
    raw: &str,
) -> SideOrigin {
    let (mut writer, mut topic, mut partition, mut offset, mut is_outside) = (None, None, None, None, false);
    for (name, value) in headers {
        let slot = match std::str::from_utf8(name) {
            Ok(WRITER) => &mut writer,
            Ok(TOPIC) => &mut topic,
            Ok(PARTITION) => &mut partition,
            Ok(OFFSET) => &mut offset,
            Ok(OUTSIDE) => {
                is_outside = true;
                continue;
            }
            _ => continue,
        };
        is_outside = false;
        *slot = value.and_then(|value| std::str::from_utf8(value).ok());
    }
    let at = || Some(Coordinates { partition: partition?.parse().ok()?, offset: offset?.parse().ok()? });
    let raw = topic.filter(|topic| *topic == raw).and_then(|_| at());
    let writer = writer.filter(|writer| is_of_group(writer, group)).map(str::to_owned);
    SideOrigin { writer, raw, is_outside }
}

/// Whether a transactional id belongs to this group: `<group>.active` or `<group>.<instance>.<worker>`. An instance may have dots
/// in its name, so an id `g.x.a.0` belongs to group `g` as well as to group `g.x`.
fn is_of_group(writer: &str, group: &str) -> bool {
    let own = writer.strip_prefix(group).and_then(|rest| rest.strip_prefix('.'));
    own.is_some_and(|own| {
        let worker = own.rsplit_once('.').map(|(_, worker)| worker);
        own == ACTIVE_ID || worker.is_some_and(|worker| worker.parse::<usize>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, String)], raw: &str) -> SideOrigin {
        origin_from(headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes()))), "g", raw)
    }

    #[test]
    fn the_origin_of_a_side_record_round_trips_through_its_headers() {
        let at = Coordinates { partition: 3, offset: 70 };
        let by_a = |raw, is_outside| SideOrigin { writer: Some("g.a.0".to_owned()), raw, is_outside };
        let reason = Reason::new("missing_id", "no id".to_owned());
        let written = reason_headers(at, &reason, "raw", Some("g.a.0"));
        assert_eq!(read(&written, "raw"), by_a(Some(at), false));
        assert_eq!(read(&written, "other"), by_a(None, false));
        let outside = [written.clone(), vec![outside_header()]].concat();
        assert_eq!(read(&outside, "raw"), by_a(Some(at), true));
        let earlier =
            reason_headers(Coordinates { partition: 9, offset: 9 }, &reason, "before", Some("g.b.0"));
        assert_eq!(read(&[earlier, written.clone()].concat(), "raw"), by_a(Some(at), false));
        assert_eq!(read(&[outside, written].concat(), "raw"), by_a(Some(at), false));
        assert_eq!(read(&[], "raw"), SideOrigin { writer: None, raw: None, is_outside: false });
    }

    #[test]
    fn a_writer_of_another_group_counts_as_another_program() {
        for own in ["g.active", "g.a.0", "g.host.example.12"] {
            assert!(is_of_group(own, "g"), "{own}");
        }
        for other in ["g2.active", "g2.a.0", "g.x.active", "h.active", "g", "g.", "g.0", "gactive"] {
            assert!(!is_of_group(other, "g"), "{other}");
        }
        let at = Coordinates { partition: 3, offset: 70 };
        let reason = Reason::new("missing_id", "no id".to_owned());
        let written = reason_headers(at, &reason, "raw", Some("g2.active"));
        assert_eq!(read(&written, "raw"), SideOrigin { writer: None, raw: Some(at), is_outside: false });
    }
}
