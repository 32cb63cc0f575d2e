//! Outages of single brokers, as the clients of this process report them: each is logged once.
//!
//! Every client connects to every broker that it needs, and repeats its connection errors as long as it does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::connection::advice;
use crate::clock;
use crate::locked::Locked;

/// An outage is over when no client has reported an error of the broker for this long. A client that needs the broker
/// repeats the same error every 30 s.
pub(crate) const OUTAGE_QUIET: Duration = Duration::from_mins(1);
/// A worker logs a failure that has lasted for this long, and then that the broker is reachable.
const LOGGED_BY_WORKER: Duration = Duration::from_secs(2);
/// Maximum number of reasons that are logged in one outage.
const MAX_REASONS: usize = 8;

/// The outages of all clients of this process.
static OUTAGES: Mutex<Outages> = Mutex::new(Outages(BTreeMap::new()));

/// Logs a connection error of a client, if it is the first with its reason in the outage. Returns false otherwise, also
/// when the text names no broker.
pub(super) fn log_failure(text: &str) -> bool {
    let Some((broker, what)) = broker_of(text) else { return false };
    if !OUTAGES.locked().is_new(broker, reason_of(what), clock::monotonic()) {
        return false;
    }
    let advice =
        advice(text).unwrap_or("check that the broker runs, and that this address can be reached from here");
    tracing::warn!(broker, reason = what, "no connection to a broker, retrying: {advice}");
    true
}

/// Logs that a client has received no token from an OIDC provider, if it is the first such line with its reason in the outage.
pub(super) fn log_missing_token(line: &str) {
    let Some((endpoint, reason)) = endpoint_of(line) else {
        tracing::error!(target: "librdkafka", line, "a token could not be acquired");
        return;
    };
    if OUTAGES.locked().is_new(endpoint, reason, clock::monotonic()) {
        let advice = advice(line).unwrap_or_default();
        tracing::warn!(endpoint, reason, "no token from the OIDC provider, retrying: {advice}");
    }
}

/// Called when a worker that failed has reached a broker again, which it logs itself.
pub(super) fn worker_has_recovered() {
    OUTAGES.locked().end_logged_by_worker(clock::monotonic());
}

/// Logs the outages that are over. To be called every few seconds.
pub fn log_ended_outages() {
    for broker in OUTAGES.locked().ended(clock::monotonic()) {
        let quiet_s = OUTAGE_QUIET.as_secs();
        if broker.contains("://") {
            tracing::info!(endpoint = broker, quiet_s, "errors of the OIDC provider ended");
            continue;
        }
        tracing::info!(
            broker,
            quiet_s,
            "connection errors ended: the broker is reachable, or no longer needed"
        );
    }
}

/// The outages by address of the broker, or by URL of the token endpoint.
#[derive(Debug, Default)]
struct Outages(BTreeMap<String, Outage>);

#[derive(Debug)]
struct Outage {
    began: Instant,
    last: Instant,
    reasons: BTreeSet<String>,
    /// A worker has logged that the broker is reachable, and no error followed.
    end_is_logged: bool,
}

impl Outages {
    /// Adds an error. Returns whether it is the first of an outage, or the first with its reason.
    fn is_new(&mut self, broker: &str, reason: &str, now: Instant) -> bool {
        let new = || Outage { began: now, last: now, reasons: BTreeSet::new(), end_is_logged: false };
        let outage = self.0.entry(broker.to_owned()).or_insert_with(new);
        if outage.is_over(now) {
            *outage = new();
        }
        outage.last = now;
        outage.end_is_logged = false;
        outage.reasons.len() < MAX_REASONS && outage.reasons.insert(reason.to_owned())
    }

    fn end_logged_by_worker(&mut self, now: Instant) {
        let long = |it: &&mut Outage| now.saturating_duration_since(it.began) >= LOGGED_BY_WORKER;
        self.0.values_mut().filter(long).for_each(|outage| outage.end_is_logged = true);
    }

    /// Removes the outages that are over. Returns the brokers whose recovery is to be logged.
    fn ended(&mut self, now: Instant) -> Vec<String> {
        let over = self.0.extract_if(.., |_, outage| outage.is_over(now));
        over.filter(|(_, outage)| !outage.end_is_logged).map(|(broker, _)| broker).collect()
    }
}

impl Outage {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= OUTAGE_QUIET
    }
}

/// The address of the broker in an error text of the client, and the text after it. Before the address the text has the
/// security protocol, or the role of a group or transaction coordinator; after it the id of the broker.
fn broker_of(text: &str) -> Option<(&str, &str)> {
    let mut rest = text;
    for _ in 0..2 {
        let (name, after) = rest.split_once(": ")?;
        let name = name.split_once("://").map_or(name, |(_, address)| address);
        let address = name.split_once('/').map_or(name, |(address, _)| address);
        if address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            return Some((address, after));
        }
        rest = after;
    }
    None
}

/// The URL of the token endpoint in a line of the client's log, and the reason after it.
fn endpoint_of(line: &str) -> Option<(&str, &str)> {
    let (endpoint, reason) = line.split_once("token from \"")?.1.split_once("\": ")?;
    Some((endpoint, reason.rsplit_once(" (").map_or(reason, |(reason, _)| reason)))
}

/// The part of an error text that is equal when the reason is: without the address that was tried, and without the time that
/// the connection was in its state.
fn reason_of(what: &str) -> &str {
    let what = what.split_once(" (after ").map_or(what, |(what, _)| what);
    what.rsplit_once(": ").map_or(what, |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "Connection refused";

    fn second(number: u64) -> Instant {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(clock::monotonic);
        *START + Duration::from_secs(number)
    }

    #[test]
    fn an_error_is_logged_once_for_each_outage_broker_and_reason() {
        let mut outages = Outages::default();
        assert!(outages.is_new("a:1", REFUSED, second(0)));
        for repeated in 1..100 {
            assert!(!outages.is_new("a:1", REFUSED, second(repeated)));
        }
        assert!(outages.is_new("b:1", REFUSED, second(100)));
        assert!(outages.is_new("a:1", "Authentication failed", second(100)));
        assert!(!outages.is_new("a:1", "Authentication failed", second(101)));
        // Without an error for a minute, the next one begins another outage.
        assert!(!outages.is_new("a:1", REFUSED, second(160)));
        assert!(outages.is_new("a:1", REFUSED, second(220)));
    }

    #[test]
    fn the_reasons_of_one_outage_are_limited() {
        let mut outages = Outages::default();
        let logged = (0..100).filter(|it| outages.is_new("a:1", &format!("reason {it}"), second(0))).count();
        assert_eq!(logged, MAX_REASONS);
    }

    #[test]
    fn the_end_of_an_outage_is_logged_once_and_only_after_a_minute_without_errors() {
        let mut outages = Outages::default();
        outages.is_new("a:1", REFUSED, second(0));
        outages.is_new("b:1", REFUSED, second(50));
        assert_eq!(outages.ended(second(59)), Vec::<String>::new());
        assert_eq!(outages.ended(second(60)), ["a:1"]);
        assert_eq!(outages.ended(second(200)), ["b:1"]);
        assert_eq!(outages.ended(second(300)), Vec::<String>::new());
    }

    #[test]
    fn a_recovery_that_a_worker_logs_is_not_logged_again() {
        let mut outages = Outages::default();
        outages.is_new("a:1", REFUSED, second(0));
        outages.is_new("b:1", REFUSED, second(9));
        outages.is_new("c:1", REFUSED, second(0));
        outages.end_logged_by_worker(second(10));
        // This one was still away.
        assert!(!outages.is_new("c:1", REFUSED, second(20)));
        assert_eq!(outages.ended(second(100)), ["b:1", "c:1"]);
    }

    #[test]
    fn endpoint_and_reason_are_parsed_from_the_log_lines_of_the_client() {
        let line = r#"[thrd:background]: Failed to retrieve OIDC token from "http://a:1/token": Empty reply from server (-1)"#;
        assert_eq!(endpoint_of(line), Some(("http://a:1/token", "Empty reply from server")));
        assert_eq!(endpoint_of("[thrd:background]: something else"), None);
    }

    #[test]
    fn broker_and_reason_are_parsed_from_the_error_texts_of_the_client() {
        let refused =
            "Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)";
        for (prefix, broker) in [
            ("localhost:9092/bootstrap", Some("localhost:9092")),
            ("sasl_ssl://b.example:9093/2", Some("b.example:9093")),
            ("GroupCoordinator: 10.0.0.1:9092", Some("10.0.0.1:9092")),
            ("[::1]:9092/1", Some("[::1]:9092")),
            ("Fatal error", None),
        ] {
            let text = format!("{prefix}: {refused}");
            assert_eq!(broker_of(&text), broker.map(|broker| (broker, refused)), "{text}");
        }
        assert_eq!(broker_of("3/3 brokers are down"), None);
        for (what, reason) in [
            (refused, REFUSED),
            (
                "Connect to ipv6#[::1]:9092 failed: Connection refused (after 3ms in state CONNECT, 2 identical error(s) \
                 suppressed)",
                REFUSED,
            ),
            (
                "SASL authentication error: Authentication failed: Invalid username or password (after 9ms in state \
                 AUTH_REQ)",
                "Invalid username or password",
            ),
            (
                "Connection setup timed out in state CONNECT (after 30029ms in state CONNECT)",
                "Connection setup timed out in state CONNECT",
            ),
        ] {
            assert_eq!(reason_of(what), reason);
        }
    }
}
