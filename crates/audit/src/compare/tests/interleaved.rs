//! Partitions whose records arrive interleaved have the results of partitions that are read one after the other.

use super::*;
use crate::group::Compared;
use crate::{Options, Range, Scope, Span, Spans};

/// Raw and clean of a partition, the latter perhaps with a fault.
type Logs = (Vec<Written>, Vec<Written>);

fn logs() -> impl Strategy<Value = Logs> {
    let fault = prop::option::of((prop::sample::select(&Kind::ALL[..]), any::<Index>(), any::<Index>()));
    (prop::collection::vec(raw_record(), 0..60), fault).prop_map(|(drawn, fault)| {
        let (raw, copy) = log_and_copy(&drawn);
        let wrong = fault.and_then(|(kind, at, to)| inject(kind, &raw, &copy, at, to));
        let clean = wrong.unwrap_or_else(|| copy.into_iter().map(|(record, _)| record).collect());
        (raw, clean)
    })
}

fn options() -> Options {
    Options {
        bootstrap_servers: String::new(),
        properties: Vec::new(),
        raw: Vec::new(),
        clean: String::new(),
        id: Vec::new(),
        schemas: crate::SchemaSources::default(),
        kinds: Vec::new(),
        compare: vec!["value".to_owned()],
        require_equal: false,
        forgotten: Vec::new(),
        missing_id: MissingId::Forwarded,
        force_header: None,
        scope: Scope::Partition,
        window: Some(std::time::Duration::from_secs(1)),
        longest_window: None,
        range: Range::default(),
        allow_gone: false,
        samples: 5,
        memory: 0,
        temp_dir: None,
        notes: Vec::new(),
        on_client: |_, _| Ok(Box::new(())),
    }
}

fn spans(partition: PartitionId, (raw, clean): &Logs) -> Spans {
    let span = |log: &[Written]| Span { low: 0, end: log.len() as Offset };
    Spans { partition, raw: span(raw), clean: span(clean), clean_trimmed: false, raw_low: 0, clean_low: 0 }
}

/// Passes the logs to the partitions, each in its order, with a random partition next.
fn interleave(
    partitions: &mut Compared,
    logs: &[&[Written]],
    random: &mut fastrand::Rng,
    take: fn(&mut Compared, PartitionId, &Seen) -> io::Result<std::ops::ControlFlow<()>>,
) {
    let mut next = vec![0; logs.len()];
    let mut open: Vec<usize> = (0..logs.len()).collect();
    while !open.is_empty() {
        let at = random.usize(..open.len());
        let number = open[at];
        if let Some(record) = logs[number].get(next[number]) {
            let partition = PartitionId::try_from(number).unwrap();
            assert!(take(partitions, partition, &seen(next[number], record)).unwrap().is_continue());
            next[number] += 1;
        } else {
            open.swap_remove(at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interleaved_partitions_have_the_results_of_each_alone(
        all in prop::collection::vec(logs(), 1..8),
        seed: u64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 0);
        let audit = options();
        let spans: Vec<_> = (0..).zip(&all).map(|(number, logs)| spans(number, logs)).collect();
        let mut partitions = Compared::alone(&audit, &spans, &scratch);
        let mut random = fastrand::Rng::with_seed(seed);
        let (raw, clean): (Vec<_>, Vec<_>) =
            all.iter().map(|(raw, clean)| (raw.as_slice(), clean.as_slice())).unzip();
        interleave(&mut partitions, &clean, &mut random, Compared::clean);
        interleave(&mut partitions, &raw, &mut random, Compared::raw);
        let mut unmatched = UnmatchedRecords::new(&scratch);
        let reports = partitions.compare(&mut unmatched, |_| ()).unwrap();
        for (report, (raw, clean)) in reports.into_iter().zip(&all) {
            let raw: Vec<_> =
                raw.iter().enumerate().map(|(at, record)| (seen(at, record), Part::Within)).collect();
            let clean: Vec<_> = clean.iter().enumerate().map(|(at, record)| seen(at, record)).collect();
            let options = PartitionOptions { partition: report.partition, samples: 5, gone: Gone::Nothing };
            let rules = Rules { due_below: raw.len() as Offset, ..rules() };
            prop_assert_eq!(report.outcome, model::compare(rules, options, &raw, &clean));
        }
    }
}
