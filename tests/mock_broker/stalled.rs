//! A partition whose fetches have stopped although its log has more records is reassigned within the client.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::metrics::Stall;
use dedupd::pipeline::{PartitionLimit, StableEnds};
use dedupd::ports::{Record, Source};

use crate::member::{Clean, LIMIT, Member, Pace};
use crate::support::mock::{Mock, RAW};
use crate::support::records::produce_with;
use crate::support::wait_until;
use crate::transactions::{fill, joined, poll, read, watched};

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

#[test]
fn a_worker_reassigns_stalled_partitions_and_counts_them() {
    let mock = Mock::start(4);
    (0..4).for_each(|partition| fill(&mock, partition, 3));
    let mut clean = Clean::of(&mock.client_config(), 4);
    let ends = StableEnds::with_patience(Duration::from_millis(500));
    let member =
        Member::sharing(mock.settings("stalled"), (PartitionLimit::new(4), ends.clone()), Pace::FULL);
    member.runs(0..4);
    let stalled = |stall| member.metrics.stalled_fetches(stall).get();
    let mut wanted: BTreeMap<u32, Vec<String>> =
        (0..4).map(|p| (p, (0..3).map(|offset| format!("{p}-{offset}")).collect())).collect();
    clean.wait_for(&wanted, || member.assert_alive());
    // The true ends of the logs.
    let note = |read: &BTreeMap<u32, u64>| ends.note((read, read), 0);
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
