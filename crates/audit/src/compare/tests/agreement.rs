//! The streaming comparison and the model agree on every outcome, however badly a topic is damaged.

use super::*;
use crate::Digest;

/// A randomly drawn raw record.
#[derive(Debug, Clone)]
struct Drawn {
    id: Option<u8>,
    step_ms: i64,
    late_ms: i64,
    forced: bool,
    forwarded_again: bool,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let id = prop_oneof![1 => Just(None), 3 => (0..60u8).prop_map(Some), 2 => Just(Some(7))];
    let late_ms = prop_oneof![4 => Just(0i64), 1 => 0..300i64];
    (id, 0..40i64, late_ms, prop::bool::weighted(0.05), any::<bool>()).prop_map(
        |(id, step_ms, late_ms, forced, forwarded_again)| Drawn {
            id,
            step_ms,
            late_ms,
            forced,
            forwarded_again,
        },
    )
}

/// A way to damage a clean log.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Lose,
    Repeat,
    Swap,
    Move,
    Alter,
    Mark,
    Invent,
    Reverse,
}

fn damages() -> impl Strategy<Value = Vec<(Damage, Index, Index, usize)>> {
    use Damage::{Alter, Invent, Lose, Mark, Move, Repeat, Reverse, Swap};
    let damage = prop::sample::select(vec![Lose, Repeat, Swap, Move, Alter, Mark, Invent, Reverse]);
    prop::collection::vec((damage, any::<Index>(), any::<Index>(), 1..60usize), 0..12)
}

fn apply(clean: &mut Vec<Written>, damage: Damage, at: Index, to: Index, length: usize) {
    if clean.is_empty() {
        return;
    }
    let (at, to) = (at.index(clean.len()), to.index(clean.len()));
    let range = at..clean.len().min(at + length);
    match damage {
        Damage::Lose => drop(clean.drain(range)),
        Damage::Repeat => {
            let again = clean[range].to_vec();
            clean.splice(to..to, again);
        }
        Damage::Swap => clean.swap(at, to),
        Damage::Move => {
            let moved: Vec<_> = clean.drain(range).collect();
            let to = to.min(clean.len());
            clean.splice(to..to, moved);
        }
        Damage::Alter => {
            for record in clean[range].iter_mut().step_by(3) {
                record.value.push('!');
            }
        }
        // As in shadow mode.
        Damage::Mark => clean[range].iter_mut().for_each(|record| record.header = Some("marked")),
        Damage::Invent => clean.insert(at, with_id(&format!("invented {at}"), 1)),
        Damage::Reverse => clean[range].reverse(),
    }
}

/// A raw log, each record with whether it is forced, and its clean log before it is damaged. With `bypass`, copies are often equal, and
/// some are in clean.
fn logs(all: &[Drawn], bypass: bool) -> (Vec<(Written, bool)>, Vec<Written>) {
    let (mut raw, mut clean) = (Vec::new(), Vec::new());
    let mut known = HashMap::new();
    let mut now_ms = 1_000;
    for record in all {
        now_ms += record.step_ms;
        let timestamp_ms = now_ms - record.late_ms;
        let timestamp_ms = if bypass { timestamp_ms / 500 * 500 } else { timestamp_ms };
        let written = match record.id {
            None => without_id(if record.step_ms % 2 == 0 { "even" } else { "odd" }, timestamp_ms / 2_000),
            Some(id) => with_id(&id.to_string(), timestamp_ms),
        };
        let owner = record.id.and_then(|id| known.get(&id).copied());
        let again = owner.is_none_or(|then_ms| now_ms - then_ms > WINDOW_MS && record.forwarded_again);
        if record.id.is_none() || again || record.forced || (bypass && record.step_ms < 20) {
            clean.push(written.clone());
        }
        if let Some(id) = record.id.filter(|_| again) {
            known.insert(id, now_ms);
        }
        raw.push((written, record.forced));
    }
    (raw, clean)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streaming_comparison_and_model_agree(
        all in prop::collection::vec(drawn(), 0..1_500),
        damages in damages(),
        window_ms in prop::option::weighted(0.8, Just(WINDOW_MS)),
        withheld: bool,
        bypass: bool,
        borders in prop::option::of((any::<Index>(), any::<Index>(), prop::option::of(0..20_000i64))),
        gone in prop::sample::select(vec![
            Gone::Nothing,
            Gone::Nothing,
            Gone::Allowed { clean_trimmed: false },
            Gone::Allowed { clean_trimmed: true },
        ]),
        samples in 0..8usize,
    ) {
        let (raw, mut clean) = logs(&all, bypass);
        for (damage, at, to, length) in damages {
            apply(&mut clean, damage, at, to, length);
        }
        let size = raw.len() + 1;
        let (begin, end, from_ms) = borders.map_or((0, size, None), |(begin, length, from_ms)| {
            let begin = begin.index(size);
            (begin, begin + length.index(size), from_ms)
        });
        // Few contents, so that many are equal.
        let digest = |at: usize| match at * 7 / 3 % 8 {
            0 => Digest::NONE,
            1 => Fingerprints::new(1).digest(b"other"),
            _ => Fingerprints::new(1).digest(b"usual"),
        };
        let part = |at| if at < begin { Part::Before } else if at < end { Part::Within } else { Part::Behind };
        let raw: Vec<_> = raw
            .iter()
            .enumerate()
            .map(|(at, (record, forced))| {
                (Seen { forced: *forced, digest: digest(at), ..seen(2 * at, record) }, part(at))
            })
            .collect();
        let clean: Vec<_> = clean.iter().enumerate().map(|(at, record)| seen(3 * at, record)).collect();
        let rules = Rules {
            window_ms,
            missing_id: if withheld { MissingId::Withheld } else { MissingId::Forwarded },
            due_below: if samples == 3 { raw.len() as Offset } else { Offset::MAX },
            from_ms,
            context_cut: withheld,
            ..rules()
        };
        both(rules, PartitionOptions { partition: 1, samples, gone }, &raw, &clean);
    }
}

#[test]
fn both_comparisons_agree_on_a_shuffled_log_with_more_pages_than_memory() {
    let raw = some_ids(40_000);
    let mut clean = raw.clone();
    fastrand::Rng::with_seed(3).shuffle(&mut clean[10_000..20_000]);
    clean.rotate_left(5);
    let again = clean[25_000..39_000].to_vec();
    clean.extend(again);
    clean.truncate(52_000);
    clean.remove(30_000);
    let outcome = compare(&raw, &clean);
    assert_eq!((outcome.counts.lost, outcome.counts.phantom, outcome.counts.altered), (0, 0, 0));
    assert!(outcome.counts.duplicated > 11_000 && outcome.counts.out_of_order > 9_000, "{outcome:?}");
}

#[test]
fn both_comparisons_agree_on_long_chains_of_one_id_or_one_content() {
    let stamped = |n: i64| with_id("hot", n * (WINDOW_MS + 1));
    let mut raw: Vec<Written> = (0..3_000).map(stamped).collect();
    raw.extend((0..3_000).map(|_| without_id("same", 5)));
    let mut clean = raw.clone();
    clean.swap(4, 2_000);
    clean.drain(100..1_400);
    clean.truncate(3_500);
    for record in clean.iter_mut().step_by(97) {
        record.value.push('!');
    }
    let rules = Rules { latest_ms: i64::MAX, ..rules() };
    let outcome = compare_by(rules, Gone::Nothing, &raw, &clean);
    assert!(outcome.counts.lost > 1_000, "{outcome:?}");
}

#[test]
fn a_copy_of_a_record_before_the_range_does_not_move_the_search_back() {
    let raw: Vec<Written> = (0..4).map(|_| without_id("same", 5)).collect();
    let clean = [without_id("same!", 5), without_id("same", 5), without_id("same!", 5)];
    let part = |at| if at < 2 { Part::Before } else { Part::Within };
    let raw: Vec<_> = raw.iter().enumerate().map(|(at, record)| (seen(at, record), part(at))).collect();
    let clean: Vec<_> = clean.iter().enumerate().map(|(at, record)| seen(at, record)).collect();
    let outcome =
        both(rules(), PartitionOptions { partition: 1, samples: 9, gone: Gone::Nothing }, &raw, &clean);
    assert_eq!(outcome.counts, only(Kind::Altered, 2));
}
