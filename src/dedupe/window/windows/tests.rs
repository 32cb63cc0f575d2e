//! What the windows of a journal share.

use std::time::Duration;

use super::*;
use crate::dedupe::coordinates::Coordinates;
use crate::dedupe::identity::Digest;
use crate::dedupe::identity::Identity;
use crate::dedupe::window::{Positions, TimeSource, WindowLimits};

const T: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;

/// The unnamed kind, a kind without a window, and another one.
fn windows() -> Windows {
    let exact = Duration::from_hours(1);
    let limits = WindowLimits { exact, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
    let window = || Some(Window::new(limits, Positions::keyed([7; 16])));
    let kinds = [window(), None, window()];
    Windows::new((0..).map(KindId::numbered).zip(kinds))
}

/// A new record of the kind at this position: it advances the clock, and is admitted.
fn admit(windows: &mut Windows, kind: usize, partition: PartitionId, offset: Offset, ms: i64) {
    windows.observe(ms);
    let identity = Identity(u128::from(offset).to_be_bytes());
    let key = windows.get(0).unwrap().key(identity);
    let owner = Owner { at: Coordinates { partition, offset }, time_ms: ms, identity, digest: Digest::NONE };
    windows.admit(kind, owner, &key);
}

fn stamps(windows: &Windows, kind: usize) -> Vec<i64> {
    windows.get(kind).unwrap().pending().iter().map(|pending| pending.stamp_ms - T).collect()
}

#[test]
fn stamps_are_the_latest_stream_time_of_all_partitions_and_never_decrease() {
    let mut windows = windows();
    admit(&mut windows, 0, 0, 1, T + 5);
    // A partition that is behind, and a kind that shares the clock.
    admit(&mut windows, 0, 1, 9, T + 2);
    windows.observe(T + 8);
    admit(&mut windows, 2, 1, 10, T + 3);
    admit(&mut windows, 1, 1, 11, T + 9);
    assert_eq!((stamps(&windows, 0), stamps(&windows, 2)), (vec![5, 5], vec![8]));
    assert_eq!((windows.committed_ms(), windows.get(1).is_none()), (0, true));
    windows.abort();
    admit(&mut windows, 0, 0, 1, T + 4);
    assert_eq!(stamps(&windows, 0), [4], "the abort did not restore the clock");
    assert_eq!(
        windows.commit(),
        [(KindId::numbered(2), 0), (KindId::UNNAMED, 0)],
        "the unnamed kind is last"
    );
    assert_eq!(windows.committed_ms(), T + 4);
    windows.restored_to(T + 1);
    assert_eq!(windows.committed_ms(), T + 4);
    windows.restored_to(T + 6);
    admit(&mut windows, 0, 0, 2, T + 5);
    assert_eq!(stamps(&windows, 0), [6]);
}

#[test]
fn the_clock_by_which_owners_expire_never_goes_back() {
    let mut windows = windows();
    admit(&mut windows, 0, 0, 1, T);
    admit(&mut windows, 2, 0, 2, T + 90 * HOUR);
    windows.commit();
    assert_eq!((windows.horizon_ms(), windows.get(0).unwrap().ids()), (0, 1), "stamps do not advance it");
    windows.set_horizon(T + HOUR + 1);
    windows.set_horizon(T);
    windows.commit();
    assert_eq!(windows.horizon_ms(), T + HOUR + 1);
    assert_eq!([0, 2].map(|kind| windows.get(kind).unwrap().ids()), [0, 1]);
}

#[test]
fn blocks_have_the_owners_of_one_kind_partition_by_partition() {
    let mut windows = windows();
    for offset in 0..7 {
        admit(&mut windows, 0, PartitionId::from(offset % 2 == 0), offset, T);
    }
    admit(&mut windows, 2, 4, 20, T);
    let blocks = windows.blocks(HashKind::Xxh3, 3);
    let places = |block: &Block| {
        let at = |owner: &Owner| (owner.at.partition, owner.at.offset);
        (block.kind.number(), block.owners.iter().map(at).collect::<Vec<_>>())
    };
    let expected = [
        (0, vec![(0, 1), (0, 3), (0, 5)]),
        (0, vec![(1, 0), (1, 2), (1, 4)]),
        (0, vec![(1, 6)]),
        (2, vec![(4, 20)]),
    ];
    assert_eq!(blocks.iter().map(places).collect::<Vec<_>>(), expected);
}

#[test]
fn a_restart_takes_over_what_is_missing_in_each_window() {
    let mut windows = windows();
    assert_eq!((windows.checkpoints(), windows.incomplete_before_ms()), (Vec::new(), None));
    windows.note_incomplete_before(T);
    let named =
        WindowCheckpoint { kind: KindId::numbered(2), dropped_ms: Some(T + 7), incomplete_ms: Some(T + 5) };
    windows.inherit(std::slice::from_ref(&named));
    let unnamed = WindowCheckpoint { incomplete_ms: Some(T), ..WindowCheckpoint::default() };
    assert_eq!((windows.checkpoints(), windows.incomplete_before_ms()), (vec![unnamed, named], Some(T)));
    windows.set_horizon(T + HOUR);
    assert_eq!(windows.incomplete_before_ms(), None, "it does not affect the unnamed kind any more");
}
