//! Copies of records without keys, which Kafka's own producer spreads over all partitions.

use super::{LIMIT, Rekey, Sidecar, audited};
use crate::support::{Isolation, Record, shared_kafka, tool, wait_until};

const VALUES: usize = 100_000;
const PARTITIONS: usize = 12;

#[test]
fn no_copy_of_a_record_without_a_key_survives_both_stages() {
    let kafka = shared_kafka();
    let (raw, to, clean) = ("verifiable.raw", "verifiable.to", "verifiable.clean");
    for topic in [raw, to] {
        kafka.create_topic(topic, PARTITIONS, &[]);
    }
    let count = VALUES.to_string();
    let arguments = ["--bootstrap-server", kafka.bootstrap(), "--topic", raw, "--max-messages", &count];
    for _ in 0..2 {
        tool("org.apache.kafka.tools.VerifiableProducer", &arguments);
    }
    let rekey = Rekey::new(kafka, to, &format!("--from {raw} --id value"));
    let dir = tempfile::tempdir().unwrap();
    let run = Sidecar::new(kafka.bootstrap(), to, clean, "a", dir.path())
        .with("DEDUPD_IDENTITY__FROM", "value")
        .with("DEDUPD_DEDUPE__SCOPE", "partition");
    let (first, second) = (rekey.start(), run.start());
    // The first stage writes at least once.
    let counted = |outcome| second.outcome(outcome) >= VALUES as u64;
    wait_until("both stages", LIMIT * 3, || {
        (second.is_ready() && counted("forwarded") && counted("duplicate")).then_some(())
    });
    assert_eq!((first.stop(), second.stop()), (Some(0), Some(0)), "{}{}", first.text(), second.text());
    let source = kafka.records(raw, Isolation::Committed);
    assert_eq!(source.len(), 2 * VALUES);
    let moved = copies_in_other_partitions(&source);
    assert!(moved > VALUES / 2, "only {moved} copies are in another partition of raw");
    assert!(kafka.records(to, Isolation::Committed).len() >= source.len());
    let report = audited(kafka, &[raw], clean, "value");
    for count in ["ids", "duplicates_in_raw", "clean_records"] {
        assert_eq!(report[count], VALUES, "{count} of {report}");
    }
}

fn copies_in_other_partitions(records: &[Record]) -> usize {
    let mut places = std::collections::HashMap::new();
    records
        .iter()
        .filter(|it| places.insert(it.value.clone(), it.partition).is_some_and(|at| at != it.partition))
        .count()
}
