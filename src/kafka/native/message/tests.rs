use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header as NewHeader, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::*;
use crate::kafka::native::fetched::Fetched;

const WAIT: Duration = Duration::from_secs(20);
/// Sizes of the values of each kind of record; a value of no size is null.
const SIZES: [Option<usize>; 5] = [None, Some(0), Some(1), Some(200), Some(70_000)];
/// Numbers of headers. 64 of them need two bytes.
const HEADERS: [usize; 5] = [0, 1, 3, 63, 64];

#[test]
fn the_record_layout_of_the_linked_client_is_known() {
    assert!(*LAYOUT_IS_KNOWN, "check is_without_headers against the new version of librdkafka");
}

/// Writes records of every size with every number of headers.
fn write(producer: &BaseProducer, topic: &str) {
    for (size, count) in SIZES.iter().flat_map(|size| HEADERS.iter().map(move |count| (*size, *count))) {
        // Bytes that are no number of headers.
        let value = size.map(|size| vec![0xEE_u8; size]);
        let mut record = BaseRecord::<[u8], [u8]>::to(topic).key(&[7; 9]);
        record.payload = value.as_deref();
        let one = |headers: OwnedHeaders, _| headers.insert(NewHeader { key: "name", value: Some("value") });
        if count > 0 {
            record.headers = Some((0..count).fold(OwnedHeaders::new(), one));
        }
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(WAIT).unwrap();
}

#[test]
fn the_byte_behind_a_value_is_its_number_of_headers_in_plain_and_compressed_batches() {
    let cluster = MockCluster::new(1).unwrap();
    let servers = cluster.bootstrap_servers();
    for compression in ["none", "gzip", "lz4", "zstd", "snappy"] {
        cluster.create_topic(compression, 1, 1).unwrap();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", &servers);
        let writing = settings.clone().set("compression.codec", compression).set("linger.ms", "100").create();
        write(&writing.unwrap(), compression);
        let consumer: BaseConsumer = settings.set("group.id", "g").create().unwrap();
        let fetched = Fetched::of(&consumer).unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(compression, 0, Offset::Beginning).unwrap();
        fetched.assign(&consumer, [(compression, 0)].into_iter(), || consumer.assign(&list)).unwrap();
        let (mut seen, mut known) = (0, 0);
        let deadline = crate::clock::monotonic() + WAIT;
        while seen < SIZES.len() * HEADERS.len() {
            assert!(crate::clock::monotonic() < deadline, "{seen} records of {compression}");
            let mut check = |message: Message<'_>| {
                if let Some(count) = message.header_count() {
                    assert!(message.proves(count), "{compression}, record {seen}");
                    known += 1;
                }
                assert_eq!(
                    message.headers().count(),
                    HEADERS[seen % HEADERS.len()],
                    "{compression}, record {seen}"
                );
                seen += 1;
                true
            };
            fetched.poll(&consumer, 16, Duration::from_millis(100), &mut check).unwrap();
        }
        assert_eq!(known, 3 * HEADERS.len(), "{compression}: values that are not empty");
        drop(fetched);
    }
    assert!(!IS_REFUTED.load(Ordering::Relaxed));
}

#[test]
fn another_number_of_headers_is_no_proof() {
    assert!(agrees(0, 0) && agrees(2, 1) && agrees(126, 63) && agrees(128, 64) && agrees(0x80 | 9, 700));
    assert!(!agrees(0, 1) && !agrees(2, 0) && !agrees(0xEE, 0) && !agrees(0, 64));
}
