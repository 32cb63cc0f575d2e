//! A broker that does not answer, answers late or is unavailable: a real Apache Kafka behind a proxy.
#![allow(clippy::float_cmp, reason = "counts are whole numbers in f64")]

use std::time::Duration;

use crate::support::proxy::Direction;
use crate::support::{Draft, Isolation, Kafka, Load, Pipe, Proxy, Running, Scope, Sidecar, api, wait_until};

const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);
const UNKNOWN: &str = "dedupd_transactions_total{result=\"unknown\"}";
/// Logged when the response to a commit is missing.
const IS_UNKNOWN: &str = "the outcome of a transaction is unknown";

/// A running sidecar behind the proxy, under load.
fn working(pipe: &Pipe<'_>, proxy: &Proxy) -> (Running, Load) {
    started(pipe, proxy, pipe.sidecar("a"))
}

fn started(pipe: &Pipe<'_>, proxy: &Proxy, mut sidecar: Sidecar) -> (Running, Load) {
    sidecar.bootstrap = proxy.bootstrap();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 3_000);
    load.more(1_000);
    (running, load)
}

/// The sidecar continues, catches up and is ready, and every record is forwarded exactly once.
fn assert_recovered(pipe: &Pipe<'_>, running: &Running, load: Load) {
    load.more(1_000);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    running.wait_ready(LIMIT);
    pipe.assert_exactly_once();
}

fn wait_unknown(running: &Running, more_than: usize) -> usize {
    let unknown = || running.text().matches(IS_UNKNOWN).count();
    wait_until("an unknown outcome", LIMIT, || Some(unknown()).filter(|count| *count > more_than))
}

#[test]
fn a_commit_without_an_answer_is_resolved_for_both_outcomes() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "lost-commits", PARTITIONS);
    let (running, load) = working(&pipe, &proxy);
    // Two lost answers: the client retries on a new connection.
    for round in 1..=3 {
        proxy.drop_responses(api::END_TXN, 2);
        proxy.wait_hits(Direction::Response, api::END_TXN, 2 * round, LIMIT);
        load.more(500);
    }
    // Answers are lost until the client gives up: the transaction is committed, and only the committed offset shows it.
    let clean = |isolation| pipe.kafka.records(&pipe.clean, isolation).len();
    let forwarded = || running.outcome("forwarded") + running.outcome("retry");
    proxy.drop_responses(api::END_TXN, usize::MAX);
    let count = wait_unknown(&running, running.text().matches(IS_UNKNOWN).count());
    proxy.heal();
    load.more(1_000);
    // Requests are lost until the client gives up: a new producer aborts the transaction. Records of an open
    // transaction look the same, so no transaction may be open while they are counted.
    let aborted = || clean(Isolation::Uncommitted) - clean(Isolation::Committed);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let before = aborted();
    let load = pipe.load(PARTITIONS, 3_000);
    proxy.drop_requests(api::END_TXN, usize::MAX);
    let count = wait_unknown(&running, count);
    proxy.heal();
    load.more(1_000);
    // Requests are held until long after the client gave up: they must not end a later transaction.
    proxy.hold_requests(api::END_TXN, 2, Duration::from_secs(8));
    wait_unknown(&running, count);
    proxy.heal();
    load.more(3_000);
    assert_recovered(&pipe, &running, load);
    let found = |result| running.text().matches(&format!("was unknown result={result}")).count();
    let (committed, undone, aborted) = (found("committed"), found("aborted"), aborted());
    println!("{committed} transactions committed without an answer, {undone} not; {aborted} records aborted");
    assert!(committed > 0, "no lost answer belonged to a commit");
    assert!(undone > 0 && aborted > before, "no lost request left an aborted transaction");
    let written = clean(Isolation::Committed) as u64;
    wait_until(&format!("{written} records in clean to be counted"), LIMIT, || {
        (forwarded() == written).then_some(())
    });
    assert_eq!(running.metric(UNKNOWN), Some(0.0), "outcomes that were never found");
}

/// The client repeats a commit over another connection, while the first request is delayed in the network. It must not end a later
/// transaction of the producer.
#[test]
fn a_delayed_commit_that_the_client_has_repeated_ends_no_later_transaction() {
    const ROUNDS: u32 = 20;
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "repeated-commits", PARTITIONS);
    let (running, load) = working(&pipe, &proxy);
    for (round, hits) in (1..=ROUNDS).zip(1..) {
        let held = Duration::from_millis(600 + 37 * u64::from(round));
        proxy.hold_requests(api::END_TXN, 1, held);
        proxy.wait_hits(Direction::Request, api::END_TXN, hits, LIMIT);
        proxy.cut_clients();
        std::thread::sleep(held + Duration::from_millis(200));
        load.more(1_000);
    }
    assert_recovered(&pipe, &running, load);
    let text = running.text();
    let found = text.matches("a connection was lost in the last transaction").count();
    println!("{found} of {ROUNDS} repeated commits were noticed");
    assert!(found >= 10, "{text}");
}

/// A broker closes connections that nothing has used for a while. Here all that the producer uses in its transactions are busy. One that is
/// closed inside a transaction replaces the producer once, because it could have been lost with a request.
#[test]
fn connections_that_are_closed_while_idle_replace_no_producer() {
    let brokers = Kafka::cluster(3, &[("connections.max.idle.ms", "5000")]);
    let pipe = Pipe::new(&brokers[0], "idle-connections", PARTITIONS);
    let running = pipe.sidecar("a").start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 3_000);
    std::thread::sleep(Duration::from_secs(20));
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let text = running.text();
    assert!(!text.contains("a connection was lost in the last transaction"), "{text}");
    pipe.assert_exactly_once();
}

#[test]
fn lost_answers_and_requests_lose_no_records() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "lost-answers", PARTITIONS);
    let (running, load) = working(&pipe, &proxy);
    let seed = std::env::var("DEDUPD_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(20_261_121);
    println!("replay with DEDUPD_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = [
        api::PRODUCE,
        api::TXN_OFFSET_COMMIT,
        api::ADD_PARTITIONS_TO_TXN,
        api::ADD_OFFSETS_TO_TXN,
        api::END_TXN,
        api::FETCH,
        api::HEARTBEAT,
    ];
    for direction in [Direction::Response, Direction::Request] {
        for kind in kinds {
            let (times, before) = (random.usize(1..4), proxy.hits(direction, kind));
            match direction {
                Direction::Response => proxy.drop_responses(kind, times),
                Direction::Request => proxy.drop_requests(kind, times),
            }
            proxy.wait_hits(direction, kind, before + 1, LIMIT);
            load.more(random.u64(100..1_000));
            if random.bool() {
                proxy.cut_all();
            }
        }
    }
    for _ in 0..10 {
        proxy.cut_all();
        load.more(random.u64(1..1_000));
    }
    proxy.heal();
    assert_recovered(&pipe, &running, load);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_member_whose_join_was_not_answered_rejoins() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "lost-join", PARTITIONS);
    let [first, other] = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let (running, load) = started(&pipe, &proxy, first);
    proxy.drop_responses(api::JOIN_GROUP, 1);
    // Another member makes the first one join again.
    let other = other.start();
    proxy.wait_hits(Direction::Response, api::JOIN_GROUP, 1, LIMIT);
    let share = |process: &Running| process.metric("dedupd_partitions{state=\"running\"}").unwrap_or(0.0);
    wait_until("both to run partitions", LIMIT, || {
        let shares = [share(&running), share(&other)];
        (shares.iter().sum::<f64>() == PARTITIONS as f64 && shares.iter().all(|share| *share > 0.0))
            .then_some(())
    });
    assert_eq!(other.stop(), Some(0), "{}", other.text());
    running.wait_running(PARTITIONS, LIMIT);
    assert_recovered(&pipe, &running, load);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn late_answers_lose_no_records() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "late-answers", PARTITIONS);
    let (running, load) = working(&pipe, &proxy);
    let given_up = || {
        let aborted = running.metric("dedupd_transactions_total{result=\"aborted\"}")?;
        Some(aborted + running.metric(UNKNOWN)?)
    };
    for kind in [api::TXN_OFFSET_COMMIT, api::PRODUCE] {
        // One late answer: the client retries. All answers late: the client gives up.
        proxy.hold_responses(kind, 1, Duration::from_secs(3));
        proxy.wait_hits(Direction::Response, kind, 1, LIMIT);
        load.more(500);
        let before = given_up().unwrap();
        proxy.hold_responses(kind, usize::MAX, Duration::from_secs(7));
        wait_until("an abandoned transaction", LIMIT, || given_up().filter(|count| *count > before));
        proxy.heal();
        load.more(500);
    }
    assert_recovered(&pipe, &running, load);
}

/// The records that are waiting take three times the transaction timeout to send.
#[test]
fn a_backlog_is_processed_over_a_slow_link() {
    const RECORDS: usize = 10_000;
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "slow-link", PARTITIONS);
    let mut random = fastrand::Rng::with_seed(3);
    // Random letters are not compressible.
    let mut letters = || std::iter::repeat_with(|| random.alphanumeric()).take(1_500).collect::<String>();
    let mut draft = |n: usize| {
        let (place, partition) = (n / PARTITIONS, n % PARTITIONS);
        // The first id of eight repeats the last of the eight before.
        let id = place / 8 * 7 + place % 8;
        let value = format!("{{\"id\":\"{partition}-{id}\",\"text\":\"{}\"}}", letters());
        Draft::new(i32::try_from(partition).unwrap(), &value)
    };
    let drafts: Vec<Draft> = (0..RECORDS).map(&mut draft).collect();
    kafka.send(&pipe.raw, &drafts);
    proxy.throttle(Direction::Request, 1_000_000);
    let mut sidecar = pipe.sidecar("a");
    sidecar.bootstrap = proxy.bootstrap();
    let running = sidecar.start();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

/// Every answer is late by 200 ms, so that a commit takes a fifth of the transaction timeout whatever its size.
#[test]
fn after_an_outage_transactions_have_their_configured_size_again_with_slow_commits() {
    const RECORDS: usize = 2_000;
    let reduced = |running: &Running| running.metric("dedupd_transaction_reduced_records");
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let late = || proxy.delay(Direction::Response, Duration::from_millis(200));
    let pipe = Pipe::new(&kafka, "reduced", PARTITIONS);
    let mut sidecar = pipe.sidecar("a").with("DEDUPD_BATCH__MAX_RECORDS", &RECORDS.to_string());
    sidecar.bootstrap = proxy.bootstrap();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    late();
    let load = pipe.load(PARTITIONS, 1_500);
    load.more(3_000);
    // A commit that a stall of the machine has made slow reduces the limit too.
    wait_until("transactions of the configured size", LIMIT * 2, || {
        reduced(&running).filter(|limit| *limit == 0.0)
    });
    // The outage: nothing is written, and each transaction times out.
    proxy.drop_requests(api::PRODUCE, usize::MAX);
    // Each halving takes the transaction timeout and a new producer, whose requests are late too.
    let small = |limit: &f64| (1.0..=RECORDS as f64 / 8.0).contains(limit);
    let limit = wait_until("small transactions", LIMIT * 3, || reduced(&running).filter(small));
    proxy.heal();
    late();
    let began = dedupd::clock::monotonic();
    wait_until("transactions of the configured size", LIMIT * 2, || {
        reduced(&running).filter(|limit| *limit == 0.0)
    });
    println!("from {limit} records to the configured size in {:?}", began.elapsed());
    let text = running.text();
    assert!(text.contains("transactions have their configured size again"), "{text}");
    proxy.heal();
    assert_recovered(&pipe, &running, load);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn with_an_unreachable_broker_the_process_is_alive_but_not_ready() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    let pipe = Pipe::new(&kafka, "unreachable", PARTITIONS);
    let (running, load) = working(&pipe, &proxy);
    proxy.refuse(true);
    proxy.cut_all();
    wait_until("it to be not ready", LIMIT, || (!running.is_ready()).then_some(()));
    let sent = load.sent();
    // Ten seconds of load: longer than the session timeout and the transaction timeout.
    wait_until("ten seconds of load", LIMIT, || (load.sent() > sent + 30_000).then_some(()));
    assert_eq!(running.ended(), None, "{}", running.text());
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    let page = running.get("/readyz").unwrap();
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    proxy.heal();
    running.wait_ready(LIMIT);
    assert_recovered(&pipe, &running, load);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Restarts the broker under load: immediately, and after the open transaction has timed out.
fn restarts(name: &str, down: impl Fn(&Kafka)) {
    // The default of brokers: they check for timed-out transactions every ten seconds.
    let kafka =
        Kafka::start_with(&[("transaction.abort.timed.out.transaction.cleanup.interval.ms", "10000")]);
    let pipe = Pipe::new(&kafka, name, PARTITIONS);
    let running = pipe.sidecar("a").start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 2_000);
    for pause in [Duration::ZERO, Duration::from_secs(7)] {
        load.more(2_000);
        // Transactions are running when the broker stops.
        let before = running.outcome("forwarded");
        wait_until("commits", LIMIT, || (running.outcome("forwarded") > before).then_some(()));
        down(&kafka);
        std::thread::sleep(pause); // zero, or longer than the transaction timeout of 5 s
        kafka.restart();
        running.wait_ready(LIMIT);
        assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    }
    assert_recovered(&pipe, &running, load);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn clean_restarts_of_the_broker_lose_no_records() {
    restarts("broker-stops", Kafka::stop);
}

#[test]
fn kills_of_the_broker_lose_no_records() {
    restarts("broker-killed", Kafka::kill9);
}
