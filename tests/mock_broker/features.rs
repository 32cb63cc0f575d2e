//! The start-up check with brokers that lack an API, or have only old versions of it.
//!
//! The embedded broker has no `DescribeConfigs`, as some services compatible with Kafka: that is no finding.

use dedupd::app;
use dedupd::cli::Exit;
use dedupd::kafka::Topology;
use rdkafka::types::RDKafkaApiKey as Api;

use crate::member::config;
use crate::support::mock::Mock;

/// The result of `dedupd check`, or its message, with a broker whose APIs have these highest versions; `None` removes the API.
fn checked(limits: &[(Api, Option<i16>)]) -> Result<Topology, String> {
    let mock = Mock::start(2);
    for (api, highest) in limits {
        mock.limit(*api, *highest);
    }
    let dir = tempfile::tempdir().unwrap();
    let checks = app::check(&config(&mock.bootstrap(), "a", dir.path()));
    checks.map(|checks| checks.topology).map_err(|failed| {
        assert_eq!(failed.exit, Exit::StartUp, "{failed}");
        failed.message
    })
}

fn refusal(limits: &[(Api, Option<i16>)]) -> String {
    let message = checked(limits).expect_err("a check that fails");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn a_broker_with_all_features_passes_the_check() {
    let topology = checked(&[]).unwrap();
    assert_eq!((topology.partitions, topology.warnings), (2, vec![]));
}

#[test]
fn a_broker_whose_offset_commits_have_no_generation_prevents_the_start() {
    let message = refusal(&[(Api::TxnOffsetCommit, Some(2))]);
    assert!(message.contains("TxnOffsetCommit version 3"), "{message}");
    assert!(message.contains("Apache Kafka 2.5 or newer"), "{message}");
}

#[test]
fn a_broker_without_transactions_prevents_the_start() {
    let message = refusal(&[(Api::InitProducerId, None)]);
    assert!(message.starts_with("the brokers have no transactions"), "{message}");
}

#[test]
fn a_broker_without_leader_epochs_and_topic_ids_causes_warnings_only() {
    let topology = checked(&[(Api::OffsetForLeaderEpoch, Some(1)), (Api::Metadata, Some(9))]).unwrap();
    let warnings = topology.warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().any(|it| it.contains("OffsetForLeaderEpoch version 2")), "{warnings:?}");
    assert!(warnings.iter().any(|it| it.contains("Metadata version 10")), "{warnings:?}");
}
