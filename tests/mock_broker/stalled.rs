//! A partition whose fetches have stopped although its log has more records is reassigned within the client.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::kafka::KafkaSource;
use dedupd::metrics::Stall;
use dedupd::pipeline::{PartitionCounts, StableEnds};
use dedupd::ports::{GroupEvent, GroupMember, Record, Remedy, Source};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaErrorCode as Code};

use crate::member::{Clean, LIMIT, Member, Pace};
use crate::support::mock::{Mock, RAW};
use crate::support::records::produce_with;
use crate::support::wait_until;
use crate::transactions::{fill, joined, poll, read, unless_lost, watched};

/// Simulates a lost fetcher: the partition is assigned, and polls return neither records nor errors.
#[test]
fn a_partition_without_a_fetcher_continues_at_its_position_after_a_reassignment() {
    for strategy in ["cooperative-sticky", "range"] {
        watched(move |_| {
            let mock = Mock::start(2);
            (0..2).for_each(|partition| fill(&mock, partition, 10));
            let mut settings = mock.settings("lost");
            settings.properties.push(("partition.assignment.strategy".to_owned(), strategy.to_owned()));
            let source = joined(&settings, &[(0, 0)]);
            read(&source, 3);
            source.pause(&[0]).expect("assigned");
            let silent = poll(&source, 1, Duration::from_millis(300)).expect("no error");
            assert!(silent.is_empty(), "a record of a partition without a fetcher");
            source.reassign(&[(0, 3, None)]).expect("assigned");
            let offsets: Vec<u64> = read(&source, 7).iter().map(|it| it.coordinates().offset).collect();
            assert_eq!(offsets, (3..10).collect::<Vec<_>>(), "{strategy}");
            source.reassign(&[(2, 0, None)]).expect_err("not assigned");
        });
    }
}

/// The client moves its position behind an error that a fetch has returned, and continues at that position after a rebalance.
#[test]
fn no_record_is_skipped_after_a_fetch_error_and_a_rebalance() {
    watched(|progress| {
        let offsets: Vec<u64> = unless_lost(|attempt| {
            progress.send(format!("attempt {attempt}")).unwrap();
            let mock = Mock::start(1);
            fill(&mock, 0, 3);
            let source = joined(&mock.settings("errors"), &[(0, 0)]);
            read(&source, 3);
            mock.inject(Api::Fetch, &[Code::Unknown; 200]);
            let failed = |source: &KafkaSource| poll(source, 1, Duration::from_millis(50)).err();
            let failure = wait_until("the error of the partition", LIMIT, || failed(&source));
            assert_eq!(failure.remedy, Remedy::Retry, "{failure}");
            fill(&mock, 0, 4);
            // Another member joins. It gets no partition, and the client pauses those of this one until the event is answered.
            let other = KafkaSource::subscribe(&mock.settings("other")).expect("a member");
            let event = wait_until("a rebalance that changes nothing", LIMIT, || {
                drop((failed(&source), failed(&other)));
                source.events().into_iter().next()
            });
            if matches!(event, GroupEvent::Lost(_)) {
                return None;
            }
            assert!(matches!(&event, GroupEvent::Assigned(ids) if ids.is_empty()), "{event:?}");
            source.assign(&[]).expect("no partition");
            mock.clear(Api::Fetch);
            Some(read(&source, 4).iter().map(|it| it.coordinates().offset).collect())
        });
        assert_eq!(offsets, [3, 4, 5, 6]);
    });
}

#[test]
fn a_worker_reassigns_stalled_partitions_and_counts_them() {
    let mock = Mock::start(4);
    (0..4).for_each(|partition| fill(&mock, partition, 3));
    let mut clean = Clean::of(&mock.client_config(), 4);
    let ends = StableEnds::with_patience(Duration::from_millis(500));
    let member =
        Member::sharing(mock.settings("stalled"), (PartitionCounts::new(4), ends.clone()), Pace::FULL);
    member.runs(0..4);
    let stalled = |stall| member.metrics.stalled_fetches(stall).get();
    let mut wanted: BTreeMap<u32, Vec<String>> =
        (0..4).map(|p| (p, (0..3).map(|offset| format!("{p}-{offset}")).collect())).collect();
    clean.wait_for(&wanted, || member.assert_alive());
    // The true ends of the logs.
    let note = |read: &BTreeMap<u32, u64>| ends.note(read, read, 0);
    note(&(0..4).map(|partition| (partition, 3)).collect());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((stalled(Stall::NotFetched), stalled(Stall::NotDelivered)), (0, 0));

    // Other readers report higher ends, and the client has not fetched these records.
    note(&BTreeMap::from([(1, 5), (2, 5)]));
    wait_until("two partitions to be reassigned twice", LIMIT, || {
        member.assert_alive();
        (stalled(Stall::NotFetched) >= 4).then_some(())
    });
    for partition in 0..4 {
        let keys = ["later", "last"].map(|key| format!("{partition}-{key}"));
        let records: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "value")).collect();
        produce_with(&mock.client_config(), RAW, i32::try_from(partition).unwrap(), &records);
        wanted.entry(partition).or_default().extend(keys.iter().cloned());
    }
    clean.wait_for(&wanted, || member.assert_alive());
    assert_eq!(clean.keys, wanted, "in order, each once");
    member.stop();
}
