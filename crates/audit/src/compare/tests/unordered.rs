//! A model of the service in topic scope reads partitions in a random order. What it writes has no findings, and one fault in
//! that is reported with its kind.

use super::topic::{KEPT_MS, Logs, compare_logs, compare_parts};
use super::*;

/// A raw record: its partition, its id, the time since the record before it, how late its timestamp is, and whether its
/// content is that of another copy.
type Drawn = (usize, Option<u8>, i64, i64, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    let id = prop_oneof![1 => Just(None), 6 => (0..60u8).prop_map(Some)];
    let late_ms = prop_oneof![4 => Just(0i64), 1 => 0..300i64];
    (0..4usize, id, 0..40i64, late_ms, prop::bool::weighted(0.3))
}

fn raw_logs(all: &[Drawn], with_equal: bool) -> Logs {
    let mut logs = vec![Vec::new(); 4];
    let mut now_ms = 5_000;
    for (number, (partition, id, step_ms, late_ms, is_equal)) in all.iter().enumerate() {
        now_ms += step_ms;
        let mut record = match id {
            None => without_id(if step_ms % 2 == 0 { "even" } else { "odd" }, 7),
            Some(id) => with_id(&id.to_string(), now_ms - late_ms),
        };
        if id.is_some() {
            // A producer that sends again writes the same timestamp.
            let is_equal = *is_equal && with_equal;
            record.value = if is_equal { "equal".to_owned() } else { number.to_string() };
            record.timestamp_ms = if is_equal { now_ms / 400 * 400 } else { record.timestamp_ms };
        }
        logs[*partition].push(record);
    }
    logs
}

/// For each raw record its stream time, and whether the model forwarded it.
fn forward(
    raw: &Logs,
    forced: &dyn Fn(usize, usize) -> bool,
    random: &mut fastrand::Rng,
) -> Vec<Vec<(i64, bool)>> {
    let mut owners: HashMap<&str, Vec<i64>> = HashMap::new();
    let mut done: Vec<Vec<(i64, bool)>> = vec![Vec::new(); raw.len()];
    let mut times = vec![0; raw.len()];
    let mut open: Vec<usize> = (0..raw.len()).collect();
    let mut run = (0, 0);
    while !open.is_empty() {
        if run.1 == 0 {
            run = (random.usize(..open.len()), random.usize(1..40));
        }
        run.1 -= 1;
        let partition = open[run.0.min(open.len() - 1)];
        let Some(record) = raw[partition].get(done[partition].len()) else {
            open.retain(|other| *other != partition);
            continue;
        };
        times[partition] = record.timestamp_ms.max(times[partition]);
        let time_ms = times[partition];
        let is_forced = forced(partition, done[partition].len());
        let is_forwarded = record.id.as_deref().is_none_or(|id| {
            let owners = owners.entry(id).or_default();
            let kept_ms = random.i64(WINDOW_MS..=KEPT_MS);
            let is_new = owners.iter().all(|owner_ms| (time_ms - owner_ms).abs() > kept_ms);
            if is_new {
                owners.push(time_ms);
            }
            is_new || is_forced
        });
        done[partition].push((time_ms, is_forwarded));
    }
    done
}

/// As [`forward`], without expiry. Now and then the last records of a partition are undone, as by a torn transaction, and read
/// again. What other partitions dropped for them stays dropped.
fn forward_and_undo(raw: &Logs, random: &mut fastrand::Rng) -> Vec<Vec<(i64, bool)>> {
    let mut done: Vec<Vec<(i64, bool)>> = vec![Vec::new(); raw.len()];
    let mut undone = 0;
    while let Some(partition) =
        random.choice(0..raw.len()).filter(|_| (0..raw.len()).any(|p| done[p].len() < raw[p].len()))
    {
        for _ in 0..random.usize(1..20) {
            let here = done[partition].len();
            let Some(record) = raw[partition].get(here) else { break };
            let is_owner = |p: usize, at: usize| done[p][at].1 && raw[p][at].id == record.id;
            let is_known = (0..raw.len()).any(|p| (0..done[p].len()).any(|at| is_owner(p, at)));
            done[partition].push((0, record.id.is_none() || !is_known));
        }
        if undone < 10 && random.u8(..4) == 0 {
            undone += 1;
            let torn = random.usize(..raw.len());
            let left = done[torn].len().saturating_sub(random.usize(1..20));
            done[torn].truncate(left);
        }
    }
    done
}

fn clean_of(raw: &Logs, done: &[Vec<(i64, bool)>]) -> Logs {
    let clean = |(log, done): (&Vec<Written>, &Vec<(i64, bool)>)| {
        log.iter().zip(done).filter(|(_, (_, is_forwarded))| *is_forwarded).map(|(r, _)| r.clone()).collect()
    };
    raw.iter().zip(done).map(clean).collect()
}

/// A record of the logs for which the condition holds.
fn pick(
    logs: &Logs,
    at: Index,
    condition: impl Fn(usize, usize, &Written) -> bool,
) -> Option<(usize, usize)> {
    let all =
        logs.iter().enumerate().flat_map(|(p, log)| log.iter().enumerate().map(move |(at, r)| (p, at, r)));
    let found: Vec<_> = all.filter(|(p, at, r)| condition(*p, *at, r)).map(|(p, at, _)| (p, at)).collect();
    (!found.is_empty()).then(|| found[at.index(found.len())])
}

fn of_id(logs: &Logs, id: Option<&String>) -> usize {
    logs.iter().flatten().filter(|record| record.id.as_ref() == id).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_model_writes_has_no_findings(
        all in prop::collection::vec(drawn(), 0..600),
        forced in prop::collection::hash_set((0..4usize, 0..100usize), 0..10),
        seed: u64,
    ) {
        let mut raw = raw_logs(&all, true);
        let is_forced = |partition, at| forced.contains(&(partition, at));
        for (partition, at) in &forced {
            if let Some(record) = raw[*partition].get_mut(*at) {
                record.header = Some("force");
            }
        }
        let done = forward(&raw, &is_forced, &mut fastrand::Rng::with_seed(seed));
        let parts: Vec<Vec<_>> = raw
            .iter()
            .enumerate()
            .map(|(p, log)| {
                let seen = |(at, record)| Seen { forced: is_forced(p, at), ..seen(2 * at, record) };
                log.iter().enumerate().map(seen).map(|record| (record, Part::Within)).collect()
            })
            .collect();
        let (outcome, _) = compare_parts(rules(), &[Gone::Nothing; 4], &parts, &clean_of(&raw, &done));
        prop_assert!(outcome.counts.is_clean(), "{outcome:?}");
    }

    #[test]
    fn records_that_are_read_again_after_a_torn_transaction_have_no_findings(
        all in prop::collection::vec(drawn(), 0..200),
        seed: u64,
    ) {
        let raw = raw_logs(&all, true);
        let done = forward_and_undo(&raw, &mut fastrand::Rng::with_seed(seed));
        let forever = Rules { window_ms: None, ..rules() };
        let (outcome, _) = compare_logs(forever, &[Gone::Nothing; 4], &raw, &clean_of(&raw, &done));
        prop_assert!(outcome.counts.is_clean(), "{outcome:?}");
    }

    #[test]
    fn one_fault_is_reported_with_its_kind(
        all in prop::collection::vec(drawn(), 2..300),
        kind in prop::sample::select(&Kind::ALL[..]),
        at: Index,
        to in 1..4usize,
        seed: u64,
    ) {
        let raw = raw_logs(&all, false);
        let done = forward(&raw, &|_, _| false, &mut fastrand::Rng::with_seed(seed));
        let mut clean = clean_of(&raw, &done);
        let mut expected = only(kind, 1);
        match kind {
            Kind::Lost => {
                let found = pick(&clean, at, |_, _, r| r.id.is_some() && of_id(&clean, r.id.as_ref()) == 1);
                prop_assume!(found.is_some());
                let (p, place) = found.unwrap();
                let lost = clean[p].remove(place);
                if to == 1 && of_id(&raw, lost.id.as_ref()) == 1 {
                    // It is in another partition instead.
                    clean[(p + 1) % 4].push(lost);
                    expected.phantom = 1;
                }
            }
            Kind::Duplicated => {
                let found = pick(&raw, at, |p, place, record| {
                    let (time_ms, is_forwarded) = done[p][place];
                    let is_owner = |q: usize, other: usize| {
                        done[q][other].1 && raw[q][other].id == record.id && (done[q][other].0 - time_ms).abs() <= WINDOW_MS
                    };
                    !is_forwarded && (0..4).any(|q| q != p && (0..raw[q].len()).any(|other| is_owner(q, other)))
                });
                prop_assume!(found.is_some());
                let (p, place) = found.unwrap();
                let mut done = done.clone();
                done[p][place].1 = true;
                clean = clean_of(&raw, &done);
            }
            Kind::OutOfOrder => {
                let next = |p: usize, place: usize| clean[p].get(place + 1);
                let found = pick(&clean, at, |p, place, r| r.id.is_some() && next(p, place).is_some_and(|n| n.id.is_some()));
                prop_assume!(found.is_some());
                let (p, place) = found.unwrap();
                clean[p].swap(place, place + 1);
            }
            Kind::Altered => {
                let found = pick(&clean, at, |p, _, r| {
                    r.id.is_some() && raw[p].iter().filter(|other| other.id == r.id).count() == 1
                });
                prop_assume!(found.is_some());
                let (p, place) = found.unwrap();
                clean[p][place].value.push('!');
            }
            Kind::Phantom => {
                let p = to % 4;
                let place = at.index(clean[p].len() + 1);
                clean[p].insert(place, with_id("never in raw", 5));
            }
        }
        let (outcome, moved) = compare_logs(rules(), &[Gone::Nothing; 4], &raw, &clean);
        let mut counts = outcome.counts;
        prop_assert_eq!(moved, expected.phantom * expected.lost);
        // Copies on both sides of the lost record, which are further apart than the window, are lost with it.
        counts.lost = counts.lost.min(expected.lost);
        prop_assert_eq!(counts, expected, "{:?}", outcome);
    }
}
