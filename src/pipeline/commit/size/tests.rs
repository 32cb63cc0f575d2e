use super::*;

const TIMEOUT: Duration = Duration::from_secs(8);
const CONFIGURED: TransactionSize = TransactionSize { records: 500_000, bytes: 256 << 20, partitions: 1_000 };

/// A connection whose commits take a fixed time and a time per record.
#[derive(Debug, Clone, Copy)]
struct Link {
    fixed: Duration,
    per_record: Duration,
}

impl Link {
    fn new(fixed_ms: u64, record_us: u64) -> Self {
        Self { fixed: Duration::from_millis(fixed_ms), per_record: Duration::from_micros(record_us) }
    }

    fn time(self, records: usize) -> Duration {
        self.fixed + self.per_record * u32::try_from(records).unwrap()
    }

    /// Commits a transaction of the largest size, or of `most` records. Returns its records, its time and the change.
    fn commit(self, limit: &mut SizeLimit, most: usize) -> (usize, Duration, SizeChange) {
        let records = limit.reduced().unwrap_or(CONFIGURED).min(CONFIGURED).records.min(most);
        let took = self.time(records);
        let change = if took < TIMEOUT {
            limit.committed(&Done { size: size(records), took, age: took }, TIMEOUT, CONFIGURED)
        } else {
            limit.failed(size(records), took, TIMEOUT)
        };
        (records, took, change)
    }
}

fn size(records: usize) -> TransactionSize {
    TransactionSize { records, bytes: records * 100, partitions: 12 }
}

fn after_failures(count: u32) -> SizeLimit {
    let mut limit = SizeLimit::default();
    for n in 0..count {
        assert_eq!(limit.failed(size(CONFIGURED.records >> n), TIMEOUT, TIMEOUT), SizeChange::Lower);
    }
    limit
}

#[test]
fn the_configured_size_returns_after_an_outage_whatever_a_commit_takes() {
    for fixed_ms in [0, 10, 900, 1_000, 1_300, 2_500, 2_999, 3_001, 3_500, 3_900] {
        for failures in 1..25 {
            let mut limit = after_failures(failures);
            let link = Link::new(fixed_ms, 0);
            let commits = (1..=100).find(|_| link.commit(&mut limit, usize::MAX).2 == SizeChange::Full);
            // The partitions double from 64 to 1,000; small steps are a quarter of the size.
            let most = if fixed_ms < 3_000 { failures.max(4) + 8 } else { 4 * failures + 20 };
            assert!(
                commits.is_some_and(|count| count <= most),
                "{commits:?} commits of {fixed_ms} ms after {failures} failures: {limit:?}"
            );
            assert_eq!(limit.reduced(), None);
        }
    }
}

#[test]
fn a_slow_link_has_transactions_of_the_largest_size_in_time_and_no_failures() {
    for (fixed_ms, record_us) in [(0, 48), (0, 20), (100, 5_000), (1_300, 300), (2_000, 40), (3_000, 48)] {
        let (link, mut limit) = (Link::new(fixed_ms, record_us), SizeLimit::default());
        let first = (0..20).take_while(|_| link.commit(&mut limit, usize::MAX).1 >= TIMEOUT).count();
        assert!(first < 12, "{first} failures with {link:?}");
        let commits: Vec<_> = (0..600).map(|_| link.commit(&mut limit, usize::MAX)).collect();
        let slowest = commits.iter().map(|(_, took, _)| *took).max().unwrap();
        assert!(slowest <= TIMEOUT * 3 / 4, "{slowest:?} with {link:?}");
        let late = &commits[300..];
        let slow = late.iter().filter(|(_, took, _)| *took >= TIMEOUT / 2).count();
        assert!(slow <= 5, "{slow} of {} commits are slow with {link:?}", late.len());
        let free = (TIMEOUT / 2).saturating_sub(link.fixed);
        let largest = usize::try_from(free.as_micros() / u128::from(record_us)).unwrap();
        let small = late.iter().filter(|(records, ..)| *records < largest * 3 / 4).count();
        assert_eq!(small, 0, "less than three quarters of {largest} records with {link:?}");
    }
}

#[test]
fn an_increase_that_does_not_fit_is_taken_back_and_comes_later_each_time() {
    // 100,000 records take half of the timeout.
    let (link, mut limit) = (Link::new(0, 40), after_failures(3));
    let mut pauses = Vec::new();
    let mut since = 0;
    for _ in 0..700 {
        match link.commit(&mut limit, usize::MAX).2 {
            SizeChange::Back => {
                pauses.push(since);
                since = 0;
            }
            SizeChange::Lower => panic!("lowered at {limit:?}"),
            _ => since += 1,
        }
    }
    assert_eq!(pauses[3..10], [9, 17, 33, 65, 129, 129, 129], "{limit:?}");
    // An outage ends the pause.
    limit.failed(size(62_500), TIMEOUT, TIMEOUT);
    assert_eq!(link.commit(&mut limit, usize::MAX).2, SizeChange::Higher);
}

#[test]
fn halving_stops_when_it_saves_little() {
    let mut limit = SizeLimit::default();
    let link = Link::new(4_500, 1);
    let sizes: Vec<usize> = (0..20).map(|_| link.commit(&mut limit, usize::MAX).0).collect();
    assert_eq!((sizes[0], sizes[1], sizes[19]), (500_000, 250_000, 250_000));
    let faster = Link::new(3_000, 1);
    assert!((0..12).any(|_| faster.commit(&mut limit, usize::MAX).2 == SizeChange::Full), "{limit:?}");
}

#[test]
fn a_small_transaction_does_not_allow_a_size_that_it_says_nothing_about() {
    let link = Link::new(0, 1_000);
    let mut limit = after_failures(8);
    for _ in 0..1_000 {
        link.commit(&mut limit, 2_000);
    }
    // 2,000 records take 2 s, so 6,000 take at most three quarters of the timeout.
    assert!(limit.reduced().unwrap().records <= 6_000, "{limit:?}");
    for _ in 0..20 {
        let (records, took, _) = link.commit(&mut limit, usize::MAX);
        assert!(took <= TIMEOUT * 3 / 4, "{records} records");
    }
}

#[test]
fn only_a_late_failure_lowers_the_limit() {
    let mut limit = SizeLimit::default();
    assert_eq!(limit.failed(size(10_000), TIMEOUT / 4, TIMEOUT), SizeChange::None);
    assert_eq!(limit.reduced(), None);
    assert_eq!(limit.failed(size(10_000), TIMEOUT, TIMEOUT), SizeChange::Lower);
    assert_eq!(limit.reduced().unwrap().records, 5_000);
}

#[test]
fn a_limit_is_never_zero_and_allows_a_few_partitions() {
    let least = TransactionSize { records: 1, bytes: 1, partitions: FEW_PARTITIONS };
    let mut limit = SizeLimit::default();
    limit.failed(TransactionSize { partitions: 2, ..least }, TIMEOUT, TIMEOUT);
    assert_eq!(limit.reduced(), Some(least));
    limit.failed(TransactionSize { records: 1_000, bytes: 100, partitions: 300 }, TIMEOUT, TIMEOUT);
    assert_eq!(limit.reduced().unwrap().partitions, 150);
}
