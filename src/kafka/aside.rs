//! Records that go to a side topic instead of the clean one.

use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};

use super::consumer::number;
use super::native::Message;
use super::side_log;
use super::topic::Topic;
use crate::dedupe::{Coordinates, PartitionId};
use crate::ports::Reason;

const TOPIC: &str = "dedupd.topic";
const PARTITION: &str = "dedupd.partition";
const OFFSET: &str = "dedupd.offset";
const WRITER: &str = "dedupd.writer";

/// A topic for records that do not go to the clean one, with a number of partitions of its own.
pub(super) struct SideTopic {
    topic: Topic,
    name: String,
    /// 0 until a broker was asked.
    partitions: u32,
}

impl SideTopic {
    pub(super) fn open<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        Ok(Self { topic: Topic::open(client, name)?, name: name.to_owned(), partitions: 0 })
    }

    /// Asks how many partitions it has, once.
    pub(super) fn know<C: ClientContext>(
        &mut self,
        client: &Client<C>,
        wait: Duration,
    ) -> Result<(), KafkaError> {
        if self.partitions > 0 {
            return Ok(());
        }
        let partitions = side_log::partitions(client, &self.name, wait)?.len();
        self.partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        if partitions > 0 {
            Ok(())
        } else {
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition))
        }
    }

    /// Each raw partition has one here, so where there are as many, no two workers write to one: each waits for the end
    /// of what is open in a partition that it has written to.
    pub(super) fn place_of(&self, raw: PartitionId) -> (&Topic, i32) {
        (&self.topic, number(raw % self.partitions.max(1)))
    }
}

/// The headers that say why a record is here and where it stood in the raw topic; they come behind its own. `writer` is
/// the transactional id: only by it can a restart recognise what its predecessor left open.
pub(super) fn explained(
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
    let known = [
        ("dedupd.owner", reason.owner.map(|owner| owner.to_string())),
        ("dedupd.owner_time", reason.owner_ms.map(|ms| ms.to_string())),
        ("dedupd.slice", reason.slice_ms.map(|ms| ms.to_string())),
        (WRITER, writer.map(str::to_owned)),
    ];
    let known = known.into_iter().filter_map(|(key, value)| Some((key, value?)));
    always.into_iter().chain(known).collect()
}

/// The headers of a record that is no copy of a raw one.
pub(super) fn written_by(writer: &str) -> OwnedHeaders {
    OwnedHeaders::new().insert(Header { key: WRITER, value: Some(writer) })
}

/// Who wrote a record of a side topic, and of which record of the topic `raw` it is a copy.
pub(super) fn origin(message: &Message<'_>, raw: &str) -> (Option<String>, Option<Coordinates>) {
    origin_by(message.headers(), raw)
}

/// A record that was read from a side topic before it came to raw has such headers of its own; the last ones count.
fn origin_by<'a>(
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    raw: &str,
) -> (Option<String>, Option<Coordinates>) {
    let (mut writer, mut topic, mut partition, mut offset) = (None, None, None, None);
    for (name, value) in headers {
        let place = match std::str::from_utf8(name) {
            Ok(WRITER) => &mut writer,
            Ok(TOPIC) => &mut topic,
            Ok(PARTITION) => &mut partition,
            Ok(OFFSET) => &mut offset,
            _ => continue,
        };
        *place = value.and_then(|value| std::str::from_utf8(value).ok());
    }
    let at = || Some(Coordinates { partition: partition?.parse().ok()?, offset: offset?.parse().ok()? });
    (writer.map(str::to_owned), topic.filter(|topic| *topic == raw).and_then(|_| at()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, String)], raw: &str) -> (Option<String>, Option<Coordinates>) {
        origin_by(headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes()))), raw)
    }

    #[test]
    fn the_origin_of_a_side_record_reads_back() {
        let at = Coordinates { partition: 3, offset: 70 };
        let reason = Reason::new("missing_id", "no id".to_owned());
        let written = explained(at, &reason, "raw", Some("g.a.0"));
        assert_eq!(read(&written, "raw"), (Some("g.a.0".to_owned()), Some(at)));
        assert_eq!(read(&written, "other"), (Some("g.a.0".to_owned()), None));
        let earlier = explained(Coordinates { partition: 9, offset: 9 }, &reason, "before", Some("g.b.0"));
        assert_eq!(read(&[earlier, written].concat(), "raw"), (Some("g.a.0".to_owned()), Some(at)));
        assert_eq!(read(&[], "raw"), (None, None));
    }
}
