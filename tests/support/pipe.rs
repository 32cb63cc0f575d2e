//! A raw topic under load, and an independent audit of the clean topic.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use dedupd::clock::monotonic;

use super::{Isolation, Kafka, Load, Record, wait_until};

/// How long the instances may take to process what is left of a load.
const CATCH_UP: Duration = Duration::from_mins(1);
/// How long the broker may take to write the markers of a transaction.
const MARKERS: Duration = Duration::from_secs(10);

/// Topics of one test.
pub struct Pipe<'k> {
    pub kafka: &'k Kafka,
    pub raw: String,
    pub clean: String,
    pub dir: tempfile::TempDir,
}

/// The result of an audit. All violations must be 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub lost: usize,
    pub duplicated: usize,
    pub out_of_order: usize,
    pub altered: usize,
    pub phantom: usize,
    /// Number of raw records, and of those that repeat an id: a run without duplicates proves nothing.
    pub raw: usize,
    pub repeats: usize,
    /// Number of repeats whose partition has no earlier record with the id. Only topic scope has them.
    pub elsewhere: usize,
    pub first: Option<String>,
}

impl Findings {
    /// Adds the findings of another partition.
    pub fn add(&mut self, other: Findings) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.out_of_order += other.out_of_order;
        self.altered += other.altered;
        self.phantom += other.phantom;
        self.raw += other.raw;
        self.repeats += other.repeats;
        self.elsewhere += other.elsewhere;
        self.first = self.first.take().or(other.first);
    }

    /// Describes a wrong clean record, if it is the first one.
    pub fn note(&mut self, what: &str, record: &Record, source: &str) {
        self.first.get_or_insert_with(|| {
            let Record { partition, offset, .. } = record;
            format!("{what}: clean {partition}@{offset} from {source:?}: {}", record.text())
        });
    }

    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.out_of_order + self.altered + self.phantom == 0
    }
}

impl<'k> Pipe<'k> {
    pub fn new(kafka: &'k Kafka, name: &str, partitions: usize) -> Self {
        Self::with_raw(kafka, name, |raw| kafka.create_topic(raw, partitions, &[]))
    }

    /// A pipe whose raw topic is on the first node of a cluster.
    pub fn on_first_node(kafka: &'k Kafka, name: &str, partitions: usize) -> Self {
        Self::with_raw(kafka, name, |raw| kafka.create_topic_on(raw, &vec![1; partitions]))
    }

    fn with_raw(kafka: &'k Kafka, name: &str, create: impl FnOnce(&str)) -> Self {
        let (raw, clean) = (format!("{name}.raw"), format!("{name}.clean"));
        create(&raw);
        let mut dir = tempfile::tempdir().unwrap();
        // Kept for the analysis of a test.
        dir.disable_cleanup(std::env::var_os("DEDUPD_KEEP").is_some());
        Self { kafka, raw, clean, dir }
    }

    pub fn group(&self) -> String {
        format!("dedupd.{}.{}", self.raw, self.clean)
    }

    pub fn sidecar(&self, instance: &str) -> super::Sidecar {
        super::Sidecar::new(self.kafka.bootstrap(), &self.raw, &self.clean, instance, self.dir.path())
    }

    /// Starts a producer that writes about `rate` records per second until it is stopped, 30 % of them repeats.
    pub fn load(&self, partitions: usize, rate: u64) -> Load {
        let mut config = self.kafka.client_config();
        config.set("enable.idempotence", "true").set("linger.ms", "5");
        Load::start(&config, &self.raw, partitions, rate)
    }

    /// Waits until the committed offsets are at the ends of raw, and no transaction is open in clean. Metrics are updated later.
    pub fn wait_caught_up(&self, partitions: usize, limit: Duration) {
        let what = format!("{} to be processed (logs so far in {})", self.raw, self.dir.path().display());
        wait_until(&what, limit, || {
            let done = (0..partitions).all(|p| {
                let p = i32::try_from(p).unwrap();
                let (_, end) = self.kafka.watermarks(&self.raw, p);
                let committed =
                    self.kafka.committed(&self.group(), &self.raw, p).map_or(0, |(offset, _)| offset);
                end == 0 || committed == end
            });
            if !done {
                std::thread::sleep(Duration::from_millis(80));
            }
            done.then_some(())
        });
        // A test may have left a transaction of its own open.
        self.kafka.wait_ended(&self.clean, Duration::from_secs(3));
    }

    /// Runs a sidecar until raw is processed, then stops it.
    pub fn through(&self, partitions: usize, sidecar: &super::Sidecar) {
        let running = sidecar.start();
        self.wait_caught_up(partitions, Duration::from_secs(40));
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    }

    /// Ends a test: ends the load, waits until it is processed, stops all instances, which must be alive until then, and
    /// audits.
    pub fn finish<'r>(
        &self,
        load: Load,
        instances: impl IntoIterator<Item = &'r super::Running>,
    ) -> Findings {
        load.finish();
        self.wait_caught_up(self.kafka.partitions(&self.raw), CATCH_UP);
        for instance in instances {
            assert_eq!(instance.ended(), None, "{}", instance.text());
            assert_eq!(instance.stop(), Some(0), "{}", instance.text());
        }
        self.assert_exactly_once()
    }

    /// Compares clean with the first occurrence of each id in raw. Shares no code with dedupd.
    pub fn audit(&self) -> Findings {
        // A marker that never comes is a finding of the audit.
        self.kafka.wait_ended(&self.clean, MARKERS);
        let raw = self.kafka.records(&self.raw, Isolation::Committed);
        let clean = self.kafka.records(&self.clean, Isolation::Committed);
        compare(&raw, &clean)
    }

    /// Stops the sidecar cleanly, then audits. Prints the path of its log after an error or violation.
    pub fn audit_after(&self, running: &super::Running) -> Findings {
        let code = running.stop();
        let findings = self.audit();
        if code != Some(0) || !findings.is_clean() {
            eprintln!("exit {code:?}, logs in {}", self.keep_logs());
        }
        findings
    }

    /// Audits, and panics with all findings after a violation.
    pub fn assert_exactly_once(&self) -> Findings {
        let findings = self.audit();
        assert!(findings.is_clean(), "{findings:#?}\nlogs in {}", self.keep_logs());
        assert!(findings.repeats > 0, "raw has no duplicates: {findings:?}");
        println!(
            "{}: lost 0, duplicated 0, out of order 0, altered 0, phantom 0; {} raw records, {} repeats",
            self.raw, findings.raw, findings.repeats
        );
        findings
    }

    /// Copies the logs of all instances to a directory that survives the test.
    pub fn keep_logs(&self) -> String {
        let kept = std::env::temp_dir().join(format!("dedupd-test-logs-{}-{}", std::process::id(), self.raw));
        std::fs::create_dir_all(&kept).unwrap();
        for entry in std::fs::read_dir(self.dir.path()).unwrap().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                std::fs::copy(entry.path(), kept.join(entry.file_name())).unwrap();
            }
        }
        kept.display().to_string()
    }
}

/// The id of a generated record: the text between the first `"id":"` and the next quote.
pub fn id(record: &Record) -> Option<String> {
    let text = record.text();
    let (_, rest) = text.split_once("\"id\":\"")?;
    rest.split_once('"').map(|(id, _)| id.to_owned())
}

type Content<'a> =
    (&'a Option<Vec<u8>>, &'a Option<Vec<u8>>, &'a Option<i64>, &'a Vec<(String, Option<Vec<u8>>)>);

fn content(record: &Record) -> Content<'_> {
    (&record.key, &record.value, &record.timestamp_ms, &record.headers)
}

/// Compares the expected clean records with the actual ones.
pub fn compare(raw: &[Record], clean: &[Record]) -> Findings {
    let mut findings = Findings { raw: raw.len(), ..Findings::default() };
    let mut partitions: BTreeMap<i32, (Vec<&Record>, Vec<&Record>)> = BTreeMap::new();
    for record in raw {
        partitions.entry(record.partition).or_default().0.push(record);
    }
    for record in clean {
        partitions.entry(record.partition).or_default().1.push(record);
    }
    for (raw, clean) in partitions.values() {
        let expected = firsts(raw.iter().copied());
        findings.repeats += raw.len() - expected.len();
        let arrived = compare_partition(&expected, clean.iter().copied(), &mut findings);
        let lost = (0..expected.len()).filter(|at| id(expected[*at]).is_some() && !arrived.contains(at));
        let lost: Vec<&Record> = lost.map(|at| expected[at]).collect();
        findings.lost += lost.len();
        if let Some(record) = lost.first() {
            findings.first.get_or_insert_with(|| {
                format!("lost: raw {}@{} {}", record.partition, record.offset, record.text())
            });
        }
    }
    findings
}

/// The records of one partition without those that repeat an id.
pub fn firsts<'a>(raw: impl IntoIterator<Item = &'a Record>) -> Vec<&'a Record> {
    let mut seen = HashSet::new();
    raw.into_iter().filter(|record| id(record).is_none_or(|id| seen.insert(id))).collect()
}

/// Compares the records of a clean partition with those that may be in it. Returns the places of the latter that are.
pub fn compare_partition<'a>(
    expected: &[&Record],
    clean: impl IntoIterator<Item = &'a Record>,
    findings: &mut Findings,
) -> HashSet<usize> {
    let place: BTreeMap<String, usize> =
        expected.iter().enumerate().filter_map(|(at, r)| Some((id(r)?, at))).collect();
    let mut arrived = HashSet::new();
    let mut previous = None;
    for record in clean {
        let note = |findings: &mut Findings, what: &str| {
            findings.first.get_or_insert_with(|| {
                format!("{what}: clean {}@{} {}", record.partition, record.offset, record.text())
            });
        };
        let Some(at) = id(record).and_then(|id| place.get(&id).copied()) else {
            if id(record).is_some() {
                findings.phantom += 1;
                note(findings, "phantom");
            }
            continue;
        };
        if !arrived.insert(at) {
            findings.duplicated += 1;
            note(findings, "duplicated");
        } else if content(expected[at]) != content(record) {
            findings.altered += 1;
            note(findings, "altered");
        }
        if previous.is_some_and(|previous| at < previous) {
            findings.out_of_order += 1;
            note(findings, "out of order");
        }
        previous = Some(at);
    }
    arrived
}
