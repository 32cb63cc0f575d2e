//! The clocks of a worker's machine.

use std::rc::Rc;
use std::time::Duration;

use dedupd::clock::Clock;

use crate::sim::universe::Universe;

/// The clocks of a worker's machine. The wall clock can be wrong.
pub struct SimClock(pub Rc<Universe>, pub usize);

impl Clock for SimClock {
    fn wall_ms(&self) -> i64 {
        let cluster = self.0.cluster.borrow();
        cluster.wall_ms() + cluster.clock_errors.get(&self.1).copied().unwrap_or(0)
    }

    fn elapsed(&self) -> Duration {
        self.0.cluster.borrow().now
    }

    fn rest(&self, pause: Duration) {
        self.0.cluster.borrow_mut().advance(pause);
    }
}
