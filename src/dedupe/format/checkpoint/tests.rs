use super::*;
use crate::dedupe::format::Dropped;

#[test]
fn a_checkpoint_reads_back_as_written() {
    let full = Checkpoint {
        state_next: 77,
        stream_time_ms: -5,
        tail: Some(Tail { crc: 0xdead_beef, next: u64::MAX, from: Some(76) }),
        rules: vec![
            (KindId::UNNAMED, "00c0ffee".parse().unwrap()),
            (KindId::named("payments"), "deadbeef".parse().unwrap()),
        ],
        ahead_of_wall_ms: -7,
        forgets: 3,
        windows: vec![
            WindowCheckpoint {
                kind: KindId::UNNAMED,
                dropped: Dropped { exact_ms: None, filters_ms: Some(7) },
                layout: FilterLayout::parse("604800000,86400000,20412|1,2|640.14.6.-|320.12.0+1.0"),
                incomplete_ms: Some(9),
            },
            WindowCheckpoint {
                kind: KindId::named("payments"),
                layout: FilterLayout::parse("700,100,7||640.14.0"),
                ..WindowCheckpoint::default()
            },
        ],
        horizon_ms: Some(0),
        first_raw_partitions: Some(4),
        epoch: Some(Epoch { next: 9, number: 12 }),
        raw: Some("aXb+c/AAQ0Cw==".into()),
        state: Some("aXb-c_AAQ0Cw".into()),
        writer: "dedupd.events;odd=name.a.0".into(),
    };
    assert!(full.windows.iter().all(|it| it.layout.is_some()));
    assert_eq!(Checkpoint::parse(&full.render()), Some(full.clone()));
    let bare = Checkpoint {
        tail: None,
        rules: Vec::new(),
        ahead_of_wall_ms: 0,
        forgets: 0,
        windows: Vec::new(),
        first_raw_partitions: None,
        epoch: None,
        raw: None,
        state: None,
        ..full
    };
    assert_eq!(Checkpoint::parse(&bare.render()), Some(bare));
}

#[test]
fn foreign_metadata_is_no_checkpoint_and_unknown_fields_are_skipped() {
    for text in ["", "v2;s=1", "hello", "v1;s=x;t=1", "v1;b=12;tx=a", "\u{fffd}\u{fffd}"] {
        assert_eq!(Checkpoint::parse(text), None, "{text:?}");
    }
    let odd = Checkpoint::parse("v1;s=4;later=1;w=nonsense;tx=w").unwrap();
    assert_eq!((odd.state_next, odd.windows.iter().any(|it| it.layout.is_some())), (4, false));
}

/// A window with long details: `filters` is the number of filters in its layout.
fn window(kind: u16, dropped: Option<i64>, filters: usize) -> WindowCheckpoint {
    let held = "18446744073709551615,".repeat(filters);
    WindowCheckpoint {
        kind: KindId::numbered(kind),
        dropped: Dropped { exact_ms: dropped, filters_ms: dropped },
        incomplete_ms: dropped,
        layout: FilterLayout::parse(&format!("2,1,9|{held}7|640.14.6")).filter(|_| filters > 0),
    }
}

fn core(writer: usize) -> Checkpoint {
    Checkpoint {
        state_next: u64::MAX,
        stream_time_ms: i64::MIN,
        rules: vec![(KindId::UNNAMED, "deadbeef".parse().unwrap())],
        ahead_of_wall_ms: i64::MIN,
        tail: Some(Tail { crc: u32::MAX, next: u64::MAX, from: Some(u64::MAX) }),
        forgets: u64::MAX,
        windows: Vec::new(),
        horizon_ms: Some(i64::MAX),
        first_raw_partitions: Some(u32::MAX),
        epoch: Some(Epoch { next: u64::MAX, number: i32::MAX }),
        raw: Some("i".repeat(24)),
        state: Some("i".repeat(24)),
        writer: "w".repeat(writer),
    }
}

#[test]
fn the_fields_that_are_always_included_have_a_bound() {
    let longest = core(400).render_within(0);
    assert!(longest.len() <= Checkpoint::MOST_BYTES_OF_CORE + 400, "{}", longest.len());
    assert_eq!(Checkpoint::parse(&longest), Some(core(400)));
}

#[test]
fn what_limits_dropped_takes_precedence_over_layouts() {
    let windows = vec![window(0, None, 1), window(9, Some(7), 30), window(12, Some(8), 1)];
    let full = Checkpoint { windows, ..core(20) };
    let text = full.render_within(core(20).render().len() + 120);
    let read = Checkpoint::parse(&text).unwrap();
    let kept: Vec<_> =
        read.windows.iter().map(|it| (it.kind.number(), it.dropped.exact_ms, it.layout.is_some())).collect();
    assert_eq!(kept, [(0, None, true), (9, Some(7), false), (12, Some(8), true)], "{text}");
}

proptest::proptest! {
    /// With any details, the text keeps its bound, and parsing returns what was written except what was left out.
    #[test]
    fn a_checkpoint_keeps_its_bound_and_its_core(
        writer in 0usize..400,
        details in proptest::collection::vec((proptest::option::of(1i64..), 0usize..40), 0..10),
        most in 0usize..4_000,
    ) {
        let kinds = (0u16..).map(|n| n * 3_000);
        let windows: Vec<_> =
            details.iter().zip(kinds).map(|((dropped, filters), kind)| window(kind, *dropped, *filters)).collect();
        let full = Checkpoint { windows, ..core(writer) };
        let text = full.render_within(most);
        let shortest = core(writer).render_within(0).len();
        proptest::prop_assert!(text.len() <= most.max(shortest), "{} of {most}", text.len());
        let read = Checkpoint::parse(&text).unwrap();
        for it in &read.windows {
            let whole = full.windows.iter().find(|whole| whole.kind == it.kind).unwrap();
            proptest::prop_assert!(it.dropped == whole.dropped || it.dropped == Dropped::default());
            proptest::prop_assert!(it.layout == whole.layout || it.layout.is_none());
        }
        proptest::prop_assert_eq!(Checkpoint { windows: Vec::new(), ..read }, core(writer));
        if full.render_within(usize::MAX).len() <= most {
            let all: Vec<_> =
                full.windows.iter().filter(|it| it.dropped != Dropped::default() || it.layout.is_some()).cloned().collect();
            proptest::prop_assert_eq!(Checkpoint::parse(&text).unwrap().windows, all);
        }
    }
}
