//! Limits on ids: the oldest are dropped, and the window reports it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures are small")]

mod ledger;

use std::time::Duration;

use dedupd::dedupe::{Block, IndexBytes, Positions, Sequence, Verdict, Window, WindowBounds, WindowLimits};

use ledger::{Ledger, T, admit, at, id, verdict};

const HOUR: f64 = 3_600.0;

fn limits() -> WindowLimits {
    ledger::limits(1e-6)
}

fn window(limits: WindowLimits) -> Window {
    Window::new(limits, Positions::keyed([7; 16]))
}

struct World {
    window: Window,
    ledger: Ledger,
    next: Sequence,
    needed: Sequence,
    /// What the checkpoint of the last commit names as dropped.
    dropped_ms: Option<i64>,
}

impl World {
    fn new(limits: WindowLimits) -> Self {
        Self { window: window(limits), ledger: Ledger::default(), next: 0, needed: 0, dropped_ms: None }
    }

    /// Inserts this number of new ids, ten per second, in transactions of a minute.
    fn run(&mut self, ids: u64) {
        for _ in 0..ids {
            let (offset, ms) = (self.next, self.now_ms());
            let key = self.window.key(id(offset));
            assert_eq!(verdict(&self.window, offset, ms, &key, &self.ledger), Verdict::New);
            admit(&mut self.window, at(offset), ms, &key);
            self.next += 1;
            if self.next.is_multiple_of(600) {
                self.commit();
            }
        }
    }

    fn now_ms(&self) -> i64 {
        T + self.next.cast_signed() * 100
    }

    fn commit(&mut self) {
        self.dropped_ms = self.window.dropped_ms();
        let needed = self.ledger.commit(&mut self.window);
        assert!(needed >= self.needed, "an owner is needed again");
        self.needed = needed;
        self.ledger.expire(needed);
    }

    /// Restarts with the blocks that are still needed and the checkpoint of the last commit.
    fn restart(&mut self, limits: WindowLimits) {
        let horizon_ms = self.window.latest_ms();
        self.window = window(limits);
        self.window.set_horizon(horizon_ms);
        self.ledger.restore(&mut self.window, self.needed);
        self.window.inherit(self.dropped_ms);
    }

    fn known(&self, seconds_ago: f64) -> Verdict {
        let number = self.next - 1 - (seconds_ago * 10.0) as u64;
        verdict(&self.window, 1 << 40, self.now_ms() - 100, &self.window.key(id(number)), &self.ledger)
    }

    /// Asserts that all ids within the reported window are known.
    fn assert_reported_window(&self) {
        let reported = self.window.effective_seconds();
        for part in 0..200 {
            let seconds = reported * f64::from(part) / 200.0;
            assert!(self.known(seconds) != Verdict::New, "{seconds} s ago, {reported} reported");
        }
    }
}

#[test]
fn a_limit_on_stored_ids_shortens_the_window_and_its_exact_part_last() {
    let mut world = World::new(limits());
    world.run(400_000);
    assert!((world.window.effective_seconds() - 7.0 * HOUR).abs() < 1e-6);
    for most in [200_000, 100_000, 10_000] {
        world.window.set_bounds(WindowBounds { max_stored: most, ..WindowBounds::NONE });
        world.run(600);
        assert!(world.window.stored_ids() <= most);
        // The checkpoint of the next commit names what was dropped.
        world.run(600);
        assert!(world.next - world.needed <= most + 2 * 600, "{} to {}", world.needed, world.next);
        let (exact, all) = (world.window.exact_seconds(), world.window.effective_seconds());
        assert!((exact - all.min(HOUR)).abs() < 1e-9 && all < most as f64 / 9.0, "{exact} of {all}");
        world.assert_reported_window();
    }
    // Without the limit, the window grows again.
    world.window.set_bounds(WindowBounds::NONE);
    world.run(400_000);
    assert!((world.window.effective_seconds() - 7.0 * HOUR).abs() < 1e-6);
    world.assert_reported_window();
}

#[test]
fn an_index_takes_at_most_the_memory_computed_for_its_maximum_of_ids() {
    // Transactions of 600 ids are smaller than the reserve of a table, which is 1/64.
    for max_ids in [50_000, 70_000, 110_000] {
        let computed = IndexBytes::of(max_ids, max_ids).peak;
        let exact = Duration::from_hours(10);
        let mut world = World::new(WindowLimits { exact, max_ids, bloom: None, ..limits() });
        for _ in 0..700 {
            world.run(600);
            let bytes = world.window.memory_in_index();
            assert!(bytes <= computed, "{bytes} bytes for {max_ids} ids, {computed} computed");
        }
        assert!(world.window.exact_seconds() < 4.0 * HOUR);
    }
}

#[test]
fn a_restored_window_stays_within_its_limits() {
    let mut world = World::new(limits());
    world.run(399_600);
    let mut restored = window(WindowLimits { max_ids: 100_000, ..limits() });
    restored.set_horizon(world.window.latest_ms());
    for (_, block) in &world.ledger.blocks {
        restored.restore(&Block::decode(block).unwrap().owners);
        assert!(restored.ids() <= 100_000);
    }
    assert!(restored.effective_seconds() < 3.0 * HOUR, "{}", restored.effective_seconds());
    // The blocks do not contain what was dropped before a restart, so it is passed separately.
    let dropped_ms = restored.dropped_ms();
    assert!(dropped_ms.is_some());
    let mut later = window(limits());
    later.set_horizon(world.window.latest_ms());
    for (_, block) in world.ledger.blocks.iter().rev().take(3).rev() {
        later.restore(&Block::decode(block).unwrap().owners);
    }
    assert!((later.effective_seconds() - 7.0 * HOUR).abs() < 1e-6, "{}", later.effective_seconds());
    later.inherit(dropped_ms);
    assert!((later.effective_seconds() - restored.effective_seconds()).abs() < 1.0, "{dropped_ms:?}");
    world.window = restored;
    world.assert_reported_window();
}

#[test]
fn ids_that_a_limit_drops_are_stored_until_a_checkpoint_names_them() {
    let exact = WindowLimits { exact: Duration::from_hours(7), bloom: None, ..limits() };
    for (limits, bounds) in [
        (exact, WindowBounds { max_ids: 100_000, ..WindowBounds::NONE }),
        (exact, WindowBounds { max_stored: 100_000, ..WindowBounds::NONE }),
        (limits(), WindowBounds { max_stored: 100_000, ..WindowBounds::NONE }),
    ] {
        for commits in 1..=3 {
            let mut world = World::new(limits);
            world.run(266_400);
            let full = world.window.effective_seconds();
            world.window.set_bounds(bounds);
            world.run(600 * commits);
            assert!(world.window.effective_seconds() < full * 0.8, "{bounds:?}: nothing was dropped");
            world.restart(limits);
            world.assert_reported_window();
            // The first checkpoint was written before the ids were dropped.
            let is_full = world.window.effective_seconds() >= full;
            assert_eq!(is_full, commits == 1, "{bounds:?}, {commits}");
        }
    }
}
