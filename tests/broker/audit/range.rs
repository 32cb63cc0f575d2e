//! A range of time on a real broker, and temporary files that cannot be written.

use super::*;

/// Raw records at 0, 10, 20 … s, some of whose ids come again after 5 s or after 400 s.
fn timed(count: i64) -> Vec<Record> {
    let mut all = Vec::new();
    let mut record = |id: &str, at_s: i64, header: Option<&str>| {
        all.push(Record {
            partition: 0,
            offset: 0,
            key: Some(b"k".to_vec()),
            value: Some(format!(r#"{{"id":"{id}","at":{at_s}}}"#).into_bytes()),
            headers: header.map(|name| (name.to_owned(), None)).into_iter().collect(),
            timestamp_ms: Some(EPOCH_MS + at_s * 1_000),
        });
    };
    for n in 0..count {
        record(&format!("id-{n}"), n * 10, None);
        if n % 7 == 3 {
            record(&format!("id-{n}"), n * 10 + 5, None);
        }
        if n % 7 == 4 && n > 40 {
            record(&format!("id-{}", n - 40), n * 10 + 6, None);
        }
        if n % 50 == 20 {
            record(&format!("id-{n}"), n * 10 + 7, Some("force"));
        }
    }
    all
}

const EPOCH_MS: i64 = 1_700_000_000_000;

#[test]
fn a_range_of_time_is_judged_and_what_was_decided_before_it_is_counted_apart() {
    let kafka = shared_kafka();
    let raw = timed(600);
    kafka.create_topic("range-raw", 1, &[("retention.ms", "-1")]);
    kafka.create_topic("range-clean", 1, &[("retention.ms", "-1")]);
    send(&kafka.client_config().create().unwrap(), "range-raw", &raw);
    // For ever known but for what is forced. One is lost before the range, one in it, one behind it.
    let mut known = HashSet::new();
    let mut right = Vec::new();
    for record in &raw {
        if known.insert(id(record)) || !record.headers.is_empty() {
            right.push(record.clone());
        }
    }
    right.retain(|record| !["id-50", "id-300", "id-500"].contains(&id(record).as_str()));
    // Markers with the time of writing stand between records that are much older.
    let producer = transactional(kafka, "range");
    for batch in right.chunks(100) {
        producer.begin_transaction().unwrap();
        send(&producer, "range-clean", batch);
        producer.commit_transaction(LIMIT).unwrap();
    }
    let at = |seconds: i64| Some(EPOCH_MS + seconds * 1_000);
    let mut options = audit::Options {
        range: Range { from_ms: at(2_000), to_ms: at(4_000) },
        window: Some(Duration::from_mins(10)),
        longest_window: Some(Duration::from_mins(10)),
        force_header: Some("force".to_owned()),
        ..audit_options(kafka, "range-raw", "range-clean")
    };
    let report = audited(&options);
    println!("{report}");
    assert_eq!(report.total.counts, Counts { lost: 1, ..Counts::default() }, "{report}");
    let (counts, range) = (report.total.raw, at(2_000)..at(4_000));
    let in_range = raw.iter().filter(|record| range.contains(&record.timestamp_ms)).count() as u64;
    let of_ids = counts.ids + counts.duplicates + counts.beyond_window;
    assert_eq!((counts.in_range, of_ids + counts.forced + counts.decided_outside), (in_range, in_range));
    assert!(report.to_string().contains(&format!("raw: {in_range} records, 200 ids, ")), "{report}");
    let outside = counts.records - in_range;
    assert!(report.to_string().contains(&format!("{outside} of them are outside the range")), "{report}");
    assert_eq!(report.total.raw.ids, 200, "{report}");
    assert_eq!(report.total.raw.forced, 4, "{report}");
    assert_eq!(
        report.total.raw.decided_outside, 6,
        "ids of the 400 s before the range came again in it: {report}"
    );
    let span = report.partitions[0].raw_span;
    assert!(span.low >= 80 && span.low < 120, "two windows before the range: {span:?}");
    assert!(report.total.raw.records < raw.len() as u64 * 2 / 3, "{report}");
    assert!(report.to_string().contains("decided outside the range: 6 raw and 0 clean records"), "{report}");
    assert_eq!(report.to_json()["from"], "2023-11-14T22:46:40.000Z");

    // Raw of the context and of the range's beginning is gone: what clean still holds of it, is no finding.
    kafka.delete_records("range-raw", 0, i64::try_from(span.low).unwrap() + 180);
    let report = audited(&options);
    assert!(report.total.counts.phantom > 0, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("--allow-gone")), "{report}");
    options.allow_gone = true;
    let report = audited(&options);
    assert_eq!(report.total.counts, Counts { lost: 1, ..Counts::default() }, "{report}");
    assert!(report.total.gone > 0, "{report}");

    // Up to the end: also what was lost later. Without the header, what was forced are repeats.
    options.range.to_ms = None;
    options.force_header = None;
    let report = audited(&options);
    assert_eq!(report.total.counts.lost, 2, "{report}");
    assert!(report.total.counts.duplicated > 0 || report.total.gone > 0, "{report}");
}
