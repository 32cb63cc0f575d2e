use super::*;

#[test]
fn absent_fields_read_back_as_absent() {
    assert_eq!(Checkpoint::parse(&Checkpoint::default().render()), Some(Checkpoint::default()));
}

#[test]
fn foreign_metadata_is_no_checkpoint_and_unknown_fields_are_skipped() {
    for text in [
        "",
        "v1;s=1;tx=a",
        "hello",
        "v2;s=x;t=1",
        "v2;b=12;tx=a",
        "v2;b=18446744073709551615:0@1;tx=a",
        "\u{fffd}\u{fffd}",
    ] {
        assert_eq!(Checkpoint::parse(text), None, "{text:?}");
    }
    let odd = Checkpoint::parse("v2;s=4;later=1;tx=w").unwrap();
    assert_eq!((odd.state_next, odd.windows.len()), (4, 0));
}

#[test]
fn the_fields_of_the_journal_have_fixed_names() {
    let text = "v2;s=4;t=0;n=9;h=7;w=topic;f=1;tx=w";
    let checkpoint = Checkpoint {
        state_next: 4,
        section_next: Some(9),
        horizon_ms: 7,
        is_topic_wide: true,
        others_follow: true,
        writer: "w".to_owned(),
        ..Checkpoint::default()
    };
    assert_eq!((checkpoint.render().as_str(), Checkpoint::parse(text)), (text, Some(checkpoint)));
    let other = Checkpoint::parse("v2;s=4;w=partition;f=0;tx=w").unwrap();
    assert!(!other.is_topic_wide && !other.others_follow && other.section_next.is_none());
    assert_eq!(Checkpoint::parse("v2;s=4;n=x;tx=w").or(Checkpoint::parse("v2;s=4;h=x;tx=w")), None);
}

fn window(kind: u16, dropped_ms: Option<i64>) -> WindowCheckpoint {
    WindowCheckpoint { kind: KindId::numbered(kind), dropped_ms, incomplete_ms: dropped_ms.map(|ms| ms / 2) }
}

fn core(writer: usize) -> Checkpoint {
    Checkpoint {
        state_next: u64::MAX,
        stream_time_ms: i64::MIN,
        rules: vec![(KindId::UNNAMED, "deadbeef".parse().unwrap())],
        ahead_of_wall_ms: i64::MIN,
        last_entry: Some(LastEntry {
            entry: EntryName { number: EntryEnd::LAST_NUMBER, crc: u32::MAX },
            from: Some(u64::MAX),
        }),
        section_next: Some(u64::MAX),
        windows: Vec::new(),
        horizon_ms: i64::MAX,
        late_ms: Some(i64::MAX),
        is_topic_wide: true,
        others_follow: true,
        first_raw_partitions: Some(u32::MAX),
        epoch: Some(Epoch { next: u64::MAX, number: i32::MAX }),
        empty_until: Some(u64::MAX),
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
fn an_epoch_counts_for_its_own_offset_and_where_no_record_is_before_the_offset() {
    let epoch = Some(Epoch { next: 7, number: 3 });
    let of =
        |empty_until, offset| Checkpoint { epoch, empty_until, ..Checkpoint::default() }.epoch_before(offset);
    assert_eq!([6, 7, 8].map(|offset| of(None, offset).is_some()), [true, true, false]);
    assert_eq!(
        [7, 8, 9].map(|offset| of(Some(8), offset).is_some()),
        [true, true, false],
        "9 was set by another program"
    );
}

#[test]
fn details_that_do_not_fit_are_left_out() {
    let windows = vec![window(0, None), window(9, Some(i64::MAX)), window(12, Some(8))];
    let full = Checkpoint { windows, ..core(20) };
    let text = full.render_within(core(20).render().len() + 20);
    assert_eq!(Checkpoint::parse(&text).unwrap().windows, [window(12, Some(8))], "{text}");
}

proptest::proptest! {
    /// With any details, the text keeps its bound, and parsing returns what was written except what was left out.
    #[test]
    fn a_checkpoint_keeps_its_bound_and_its_core(
        writer in 0usize..400,
        details in proptest::collection::vec(proptest::option::of(1i64..), 0..40),
        most in 0usize..4_000,
    ) {
        let kinds = (0u16..).map(|n| n * 1_500);
        let windows: Vec<_> =
            details.iter().zip(kinds).map(|(dropped, kind)| window(kind, *dropped)).collect();
        let full = Checkpoint { windows, ..core(writer) };
        let text = full.render_within(most);
        let shortest = core(writer).render_within(0).len();
        proptest::prop_assert!(text.len() <= most.max(shortest), "{} of {most}", text.len());
        let read = Checkpoint::parse(&text).unwrap();
        for it in &read.windows {
            proptest::prop_assert!(full.windows.contains(it));
        }
        proptest::prop_assert_eq!(Checkpoint { windows: Vec::new(), ..read }, core(writer));
        if full.render_within(usize::MAX).len() <= most {
            let all: Vec<_> =
                full.windows.iter().filter(|it| it.dropped_ms.is_some()).cloned().collect();
            proptest::prop_assert_eq!(Checkpoint::parse(&text).unwrap().windows, all);
        }
    }
}
