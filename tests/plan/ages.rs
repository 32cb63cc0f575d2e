//! The window that the ages of copies recommend.

use std::time::Duration;

use dedupd::tools::plan::{CapacityPlan, MeasuredAges, SHARES, WindowAdvice, Workload};

/// Copies with this longest age, and shorter ones.
fn measured(copies: u64, longest: Duration) -> MeasuredAges {
    let within = SHARES.map(|share| longest / 10_000 * u32::try_from(share).unwrap());
    MeasuredAges {
        copies,
        within,
        longest,
        covered_seconds: 7_200.0,
        is_whole: false,
        one_in: 1,
        most_ids: 3 << 20,
    }
}

fn advice(copies: u64, longest: Duration) -> WindowAdvice {
    WindowAdvice::of(measured(copies, longest), super::workload(1_000.0))
}

#[test]
fn a_recommended_window_is_never_shorter_than_the_longest_age() {
    let units = [1, 60, 3_600, 86_400];
    for ms in (0..60_000).chain((60_000..4_000_000_000).step_by(1_234_567)) {
        let exact = advice(10_000, Duration::from_millis(ms)).exact_seconds.unwrap();
        assert!(exact >= ms as f64 / 1_000.0 && exact >= 1.0, "{ms} ms: {exact} s");
        // A few percent longer, except where a unit begins.
        assert!(exact <= ms as f64 / 500.0 + 1.0, "{ms} ms: {exact} s");
        assert!(units.iter().any(|unit| exact % f64::from(*unit) == 0.0 && exact / f64::from(*unit) <= 60.0));
    }
    assert!(advice(10_000, Duration::MAX).exact_seconds.unwrap() > 1e18);
}

#[test]
fn a_share_needs_copies_beyond_it() {
    let hour = Duration::from_hours(1);
    for (copies, known) in [(0, 0), (99, 0), (100, 1), (999, 1), (1_000, 2), (9_999, 2), (10_000, 3)] {
        let advice = advice(copies, hour);
        assert_eq!(advice.seconds.iter().flatten().count(), known, "{copies} copies");
        assert_eq!((advice.exact_seconds.is_some(), advice.costs.is_some()), (known > 0, known > 0));
        assert_eq!(advice.longer_than(hour / 2), (known > 0).then_some(hour));
        assert_eq!(advice.longer_than(hour), None);
        let text = advice.to_string();
        assert_eq!(text.matches("not known: ").count(), 3 - known, "{text}");
        assert_eq!(text.contains("no recommendation: 100 copies are needed"), known == 0, "{text}");
        assert_eq!(text.contains("window.exact                   at least 1h\n"), known > 0, "{text}");
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }
    let text = advice(1_234, hour).to_string();
    assert!(text.starts_with("ages of 1,234 copies\n"), "{text}");
    assert!(text.contains("99.99 % found by a window of   not known: 10,000 copies are needed\n"), "{text}");
}

#[test]
fn what_was_not_seen_is_said() {
    let part = measured(500, Duration::from_mins(90));
    let text = |measured| WindowAdvice::of(measured, super::workload(1_000.0)).to_string();
    let [of_sample, whole] = [false, true].map(|is_whole| text(MeasuredAges { is_whole, ..part }));
    assert!(of_sample.contains("copies later than 2h, the time of the records that were read; --full"));
    assert!(
        whole.contains("copies later than 2h, the time of the records in the topic")
            && !whole.contains("--full")
    );
    assert!(!whole.contains("followed"), "{whole}");
    let limited = text(MeasuredAges { one_in: 8, is_whole: true, ..part });
    assert!(limited.contains("one id in 8, because at most 3,145,728 are\n"), "{limited}");
}

#[test]
fn the_costs_are_those_of_the_plan_with_that_window() {
    let load = Workload { partitions: 12, ..super::workload(5_000.0) };
    let advice = WindowAdvice::of(measured(500, Duration::from_mins(61)), load);
    let window = Duration::from_hours(2);
    assert_eq!(advice.exact_seconds, Some(window.as_secs_f64()));
    let costs = |window| {
        let plan = CapacityPlan::of(Workload { exact: window, bloom: window, ..load });
        (plan.memory.total_bytes, plan.disk_bytes, plan.state_topic.bytes)
    };
    let found = advice.costs.unwrap();
    assert_eq!((found.memory_bytes, found.disk_bytes, found.state_topic_bytes), costs(window));
    assert_ne!(costs(window), costs(load.exact), "the control: the window of the plan");
    assert!(advice.to_string().contains("costs of that window"), "{advice}");
}
