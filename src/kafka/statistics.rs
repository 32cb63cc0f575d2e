//! What the clients of the workers report about themselves: round trips, throttling, queues, connections.
//!
//! A client reports every [`INTERVAL_MS`] while it is polled. Of the several hundred values of a report a few are kept, for
//! the clients that read raw and those that write.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::Statistics;
use rdkafka::statistics::{Broker, Window};

use crate::clock;
use crate::locked::Locked;

/// Interval between two reports of a client, in milliseconds.
pub(super) const INTERVAL_MS: &str = "10000";
/// A client that has not reported for this long has ended, or is not polled.
const EXPIRED: Duration = Duration::from_secs(35);

/// What a client is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientUse {
    /// Reading raw as a member of the group.
    Consumer,
    /// Writing clean, state and side topics.
    Producer,
}

/// The figures of one client, or of all clients with the same use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// The 99th percentile of the round trips to the slowest broker.
    pub round_trip: Duration,
    /// The 99th percentile of the throttle time of the broker that throttles most.
    pub throttle: Duration,
    /// Records that are fetched and not read, or not written yet.
    pub queued: u64,
    /// Brokers that the client was connected to and is not.
    pub brokers_down: u64,
}

impl ClientFigures {
    fn add(&mut self, other: Self) {
        self.round_trip = self.round_trip.max(other.round_trip);
        self.throttle = self.throttle.max(other.throttle);
        self.queued += other.queued;
        self.brokers_down = self.brokers_down.max(other.brokers_down);
    }
}

/// The last report of each client of this process, by the name that the client library gives it.
static REPORTS: Mutex<BTreeMap<String, (Instant, ClientUse, ClientFigures)>> = Mutex::new(BTreeMap::new());

/// Stores the report of a client.
pub(super) fn note(client: ClientUse, statistics: &Statistics) {
    let figures = figures(statistics);
    REPORTS.locked().insert(statistics.name.clone(), (clock::monotonic(), client, figures));
}

/// The figures of the clients that have reported recently: the worst of all workers, and the sum of their queues.
pub(crate) fn client_figures() -> BTreeMap<ClientUse, ClientFigures> {
    let mut reports = REPORTS.locked();
    reports.retain(|_, (at, ..)| at.elapsed() < EXPIRED);
    let mut merged: BTreeMap<ClientUse, ClientFigures> = BTreeMap::new();
    for (_, client, figures) in reports.values() {
        merged.entry(*client).or_default().add(*figures);
    }
    merged
}

fn figures(statistics: &Statistics) -> ClientFigures {
    // The entries with a negative number are addresses of `bootstrap.servers`, which have another entry as brokers.
    let brokers = || statistics.brokers.values().filter(|broker| broker.nodeid >= 0);
    let longest = |of: fn(&Broker) -> Option<&Window>| {
        brokers().filter_map(of).map(|window| window.p99).max().unwrap_or(0)
    };
    let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
    let fetched: i64 = partitions.map(|partition| partition.fetchq_cnt.max(0)).sum();
    // The client connects only to brokers that it needs.
    let down = brokers().filter(|it| it.state != "UP" && it.connects.is_some_and(|count| count > 0)).count();
    ClientFigures {
        round_trip: Duration::from_micros(u64::try_from(longest(|it| it.rtt.as_ref())).unwrap_or(0)),
        throttle: Duration::from_millis(u64::try_from(longest(|it| it.throttle.as_ref())).unwrap_or(0)),
        queued: statistics.msg_cnt + u64::try_from(fetched).unwrap_or(0),
        brokers_down: down as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(nodeid: i32, state: &str, rtt_us: i64, throttle_ms: i64) -> (String, Broker) {
        let window = |p99| Some(Window { p99, ..Window::default() });
        let broker = Broker {
            nodeid,
            state: state.to_owned(),
            connects: Some(1),
            rtt: window(rtt_us),
            throttle: window(throttle_ms),
            ..Broker::default()
        };
        (nodeid.to_string(), broker)
    }

    #[test]
    fn the_slowest_broker_counts_and_addresses_of_bootstrap_servers_do_not() {
        let brokers = [
            broker(-1, "DOWN", 9_000_000, 9_000),
            broker(1, "UP", 1_500, 0),
            broker(2, "TRY_CONNECT", 4_000, 250),
        ];
        let report = Statistics { msg_cnt: 7, brokers: brokers.into(), ..Statistics::default() };
        let expected = ClientFigures {
            round_trip: Duration::from_millis(4),
            throttle: Duration::from_millis(250),
            queued: 7,
            brokers_down: 1,
        };
        assert_eq!(figures(&report), expected);
    }
}
