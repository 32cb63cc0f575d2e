//! The end of a log that is reported before the end of what is audited.

use super::*;
use crate::support::proxy::{Direction, Proxy, api};

/// A topic of one partition with 1,000 records without repeats.
fn topic(kafka: &Kafka, name: &str) {
    kafka.create_topic(name, 1, &[]);
    let mut load = load(kafka, name, 1_000);
    load.shape.duplicates = 0.0;
    generate::run(&load, &AtomicBool::new(false), |_| ()).unwrap();
}

fn through(proxy: &Proxy, options: audit::Options) -> audit::Options {
    audit::Options { bootstrap_servers: proxy.bootstrap(), ..options }
}

#[test]
fn an_end_that_is_reported_early_hides_no_record() {
    let kafka = Kafka::start();
    topic(&kafka, "early");
    kafka.create_topic("early-empty", 1, &[]);
    let proxy = kafka.proxy();

    // Clean is empty, so the first fetch is one of raw.
    proxy.end_fetches(0, 1);
    let report = audited(&through(&proxy, audit_options(&kafka, "early", "early-empty")));
    assert_eq!(proxy.hits(Direction::Response, api::FETCH), 1);
    assert_eq!(report.total.counts, Counts { lost: 1_000, ..Counts::default() }, "{report}");

    // Clean is read first.
    proxy.end_fetches(0, 1);
    let report = audited(&through(&proxy, audit_options(&kafka, "early", "early")));
    assert_eq!(proxy.hits(Direction::Response, api::FETCH), 2);
    assert!(report.is_clean(), "{report}");

    // The end stays early.
    proxy.delay(Direction::Response, Duration::from_millis(100));
    proxy.end_fetches(0, usize::MAX);
    let options = through(&proxy, audit_options(&kafka, "early", "early-empty"));
    let error = audit::run(&options, &ProgressBar::hidden()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("topic early, partition 0 was reported to end at offset 0, before offset 1000"),
        "{text}"
    );
}
