//! A window with Bloom filters after its exact part: expiry, aborts and rebuilds.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ledger;

use dedupd::dedupe::{BlockView, FilterLayout, Offset, Verdict, Window, WindowBounds, WindowLimits};

use ledger::{Ledger, T, id};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
/// Ids per transaction, one per second.
const BATCH: u64 = 600;

fn limits() -> WindowLimits {
    ledger::limits(1e-9)
}

fn judge(window: &mut Window, ledger: &Ledger, at: Offset, number: u64, ms: i64) -> Verdict {
    window.observe(Some(ms), ms);
    let key = window.key(id(number));
    let verdict = window.verdict(at, &key, ledger).unwrap();
    if matches!(verdict, Verdict::New | Verdict::Retry) {
        window.admit(at, &key);
    }
    verdict
}

/// A window with ids 0.. at offsets 0.., one per second, starting at T.
fn filled(seconds: u64) -> (Window, Ledger, Offset) {
    let (mut window, mut ledger, mut needed) = (Window::new(limits()), Ledger::default(), 0);
    for at in 0..seconds {
        let verdict = judge(&mut window, &ledger, at, at, T + 1_000 * at.cast_signed());
        assert_eq!(verdict, Verdict::New, "{at}");
        if (at + 1) % BATCH == 0 {
            needed = ledger.commit(&mut window, at + 1);
        }
    }
    (window, ledger, needed)
}

fn verdict_of(window: &Window, ledger: &Ledger, number: u64) -> Verdict {
    window.verdict(1 << 40, &window.key(id(number)), ledger).unwrap()
}

#[test]
fn an_id_is_exact_then_probable_then_new() {
    let (window, ledger, _) = filled(36_000);
    let ago = |seconds: u64| verdict_of(&window, &ledger, 36_000 - seconds);
    assert!(matches!(ago(1), Verdict::Duplicate { .. }));
    assert!(matches!(ago(3_500), Verdict::Duplicate { .. }));
    for seconds in (3_700..=25_200).step_by(97) {
        let verdict = ago(seconds);
        assert!(
            matches!(verdict, Verdict::Probable { .. } | Verdict::Duplicate { .. }),
            "{seconds}: {verdict:?}"
        );
    }
    let Verdict::Probable { since_ms } = ago(20_000) else { panic!("{:?}", ago(20_000)) };
    assert!((T + 16_000_000 - HOUR - 5 * MINUTE..=T + 16_000_000).contains(&since_ms), "{since_ms}");
    // A slice expires when its end is outside of the window.
    assert_eq!(ago(36_000), Verdict::New);
    assert_eq!(verdict_of(&window, &ledger, 1 << 33), Verdict::New, "never inserted");
    assert!(window.false_positive_rate() <= 1e-9, "{}", window.false_positive_rate());
}

#[test]
fn ids_beyond_the_count_limit_move_to_the_filters() {
    let (mut window, mut ledger, _) = filled(3_000);
    window.set_bounds(WindowBounds { max_ids: 1_000, ..WindowBounds::NONE });
    assert_eq!(judge(&mut window, &ledger, 3_000, 3_000, T + 3_000_000), Verdict::New);
    ledger.commit(&mut window, 3_001);
    assert!(matches!(verdict_of(&window, &ledger, 2_900), Verdict::Duplicate { .. }));
    for number in 0..1_900 {
        assert!(matches!(verdict_of(&window, &ledger, number), Verdict::Probable { .. }), "{number}");
    }
}

#[test]
fn an_aborted_id_is_in_no_filter() {
    let (mut window, ledger, _) = filled(600);
    assert_eq!(judge(&mut window, &ledger, 600, 9_999, T + 600_000), Verdict::New);
    // Hours of stream time within one transaction do not expire an owner of the same transaction.
    assert!(matches!(
        judge(&mut window, &ledger, 601, 9_999, T + 3 * HOUR),
        Verdict::Duplicate { owner: 600 }
    ));
    window.abort();
    window.observe(Some(T + 5 * HOUR), T + 5 * HOUR);
    assert_eq!(verdict_of(&window, &ledger, 9_999), Verdict::New);
}

fn restored(ledger: &Ledger, from: Offset, layout: Option<&FilterLayout>) -> Window {
    let mut window = Window::new(limits());
    if let Some(layout) = layout {
        window.follow_filters(layout);
    }
    for block in &ledger.blocks {
        let view = BlockView::verified(block).unwrap();
        if view.header.next > from {
            window.restore(&view, Offset::MAX).unwrap();
        }
    }
    window
}

#[test]
fn the_needed_blocks_restore_the_same_answers() {
    let (window, ledger, needed) = filled(36_000);
    assert!((1..=36_000 - 25_200).contains(&needed), "blocks of expired ids are still needed: {needed}");
    let slices = |window: &Window| window.bloom().unwrap().slices();
    let layout = ledger.layout.as_ref();
    assert!(layout.is_some());
    for rebuilt in
        [restored(&ledger, 0, None), restored(&ledger, 0, layout), restored(&ledger, needed, layout)]
    {
        assert_eq!(slices(&rebuilt), slices(&window), "the filters differ");
    }
    for rebuilt in [restored(&ledger, needed, layout), restored(&ledger, needed, None)] {
        // Without the layout and with fewer slices, the filters have other sizes, but the same ids.
        let held =
            |window: &Window| -> Vec<_> { slices(window).iter().map(|s| (s.start_ms, s.ids)).collect() };
        assert_eq!(held(&rebuilt), held(&window));
        for number in (0..36_000).chain(1 << 33..(1 << 33) + 20_000) {
            let (was, is) = (verdict_of(&window, &ledger, number), verdict_of(&rebuilt, &ledger, number));
            // At the end of the exact part, a restored owner may stay exact for a little longer.
            let border = matches!((was, is), (Verdict::Probable { .. }, Verdict::Duplicate { .. }));
            assert!(was == is || border, "{number}: {was:?}, then {is:?}");
        }
    }
}

#[test]
fn truncation_makes_the_filters_stale_until_they_are_rebuilt() {
    let (mut window, mut ledger, _) = filled(7_200);
    assert!(!window.has_stale_filters());
    window.truncate(1_200);
    assert!(window.has_stale_filters());
    ledger.owners.retain(|owner, _| *owner < 1_200);
    window.empty_filters();
    for block in &ledger.blocks {
        window.refill(&BlockView::verified(block).unwrap(), 1_200).unwrap();
    }
    assert!(!window.has_stale_filters());
    window.observe(Some(T + 2 * HOUR), T + 2 * HOUR);
    assert_eq!(verdict_of(&window, &ledger, 1_200), Verdict::New);
    assert!(matches!(verdict_of(&window, &ledger, 1_199), Verdict::Probable { .. }));
}
