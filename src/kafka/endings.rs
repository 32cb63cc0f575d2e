//! Whether a producer may begin another transaction.
//!
//! When the connection to a coordinator is lost, the client sends the request of a commit or an abort again over another one. The
//! first request may still be on its way: the kernel delivers what a closed socket has sent, and a broker processes what it has
//! received. All transactions of a producer have the same epoch, so a request that arrives after the next one has begun ends
//! that one: a part of its records is committed without its offsets. In the same way, late offsets replace those of the next
//! transaction. A new producer has another epoch, and the broker rejects late requests of the old one.
//!
//! The client does not report that it repeats a request. It repeats one without a response only after the connection is lost or
//! the request has timed out, and its log has a line for both, queued before it repeats the request: with `debug=broker` for each
//! change of a connection, and always for a timeout. With `debug=eos` it has a line for the begin and the end of each transaction
//! (librdkafka 2.12.1, `rdkafka_broker.c` and `rdkafka_txnmgr.c`). `debug=protocol` has a line for each request and each response,
//! which took 6 to 8 % of the CPU time of a record.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::clock;

/// The states of a connection over which requests may have been sent. When a session is authenticated again, the connection stays open and
/// goes through the last three.
const CONNECTED: [&str; 4] = ["UP", "REAUTH", "AUTH_HANDSHAKE", "AUTH_REQ"];
/// How long to wait for the lines of transactions that have ended. They are queued before the calls return.
const LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// How the transactions of a producer ended. The lines are recorded in the order in which the client queues them.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Number of transactions that calls have ended.
    ended: AtomicU64,
    /// Number of those whose last line was processed.
    logged: AtomicU64,
    /// Whether a request has lost its response since the last transaction began.
    lost: AtomicBool,
    /// Whether a transaction has ended with a request that may arrive later.
    is_open: AtomicBool,
}

impl Endings {
    /// The `debug` contexts of the lines.
    pub const CONTEXTS: &'static str = "eos,broker";

    /// A commit or an abort has succeeded.
    pub fn ended(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// A call for a transaction has failed. If no broker has rejected it, its request may have no response. A call that can be
    /// repeated continues to wait for the response.
    pub fn failed(&self, error: &KafkaError) {
        let is_repeatable = matches!(error, KafkaError::Transaction(error) if error.is_retriable());
        // Codes of the client are negative, those of brokers positive, except for one.
        let is_answer = |code: RDKafkaErrorCode| code as i32 > 0 || code == RDKafkaErrorCode::Unknown;
        if !is_repeatable && !error.rdkafka_error_code().is_some_and(is_answer) {
            self.is_open.store(true, Ordering::Release);
        }
    }

    /// Processes a line of the client's log.
    pub fn record(&self, facility: &str, line: &str) {
        match facility {
            "TXNSTATE" if line.ends_with(" -> InTransaction") => self.lost.store(false, Ordering::Relaxed),
            "STATE" if is_disconnect(line) => self.lost.store(true, Ordering::Relaxed),
            "REQTMOUT" if line.contains("in flight") => self.lost.store(true, Ordering::Relaxed),
            "TXNCOMMIT" | "TXNABORT" if line.ends_with("transaction now acked by application") => {
                if self.lost.load(Ordering::Relaxed) {
                    self.is_open.store(true, Ordering::Release);
                }
                self.logged.fetch_add(1, Ordering::AcqRel);
            }
            _ => {}
        }
    }

    /// Whether every request of the transactions that have ended has a response, so that none can arrive late.
    pub fn are_final(&self) -> bool {
        let ended = self.ended.load(Ordering::Acquire);
        let deadline = clock::monotonic() + LINES_TIMEOUT;
        while self.logged.load(Ordering::Acquire) < ended {
            if clock::monotonic() > deadline {
                return false;
            }
            thread::sleep(Duration::from_micros(50));
        }
        !self.is_open.load(Ordering::Acquire)
    }
}

/// Whether a line such as `broker:9092/1: Broker changed state UP -> DOWN` is about the end of a connection.
fn is_disconnect(line: &str) -> bool {
    let states = line.split_once("Broker changed state ").and_then(|(_, states)| states.split_once(" -> "));
    states.is_some_and(|(before, after)| CONNECTED.contains(&before) && after == "DOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: (&str, &str) =
        ("STATE", "[thrd:TxnCoordinator]: TxnCoordinator/1: Broker changed state UP -> DOWN");
    const CONNECTS: (&str, &str) = ("STATE", "[thrd:x]: x/1: Broker changed state APIVERSION_QUERY -> UP");
    const REFUSED: (&str, &str) = ("STATE", "[thrd:x]: x/1: Broker changed state CONNECT -> DOWN");
    const TIMED_OUT: (&str, &str) =
        ("REQTMOUT", "[thrd:x]: x/1: Timed out EndTxnRequest in flight (after 60000ms, timeout #0)");

    fn begin(endings: &Endings) {
        endings.record("TXNSTATE", "[thrd:main]: Transaction state change Ready -> InTransaction");
    }

    fn acked(endings: &Endings) {
        endings.record("TXNCOMMIT", "[thrd:main]: Committed transaction now acked by application");
    }

    fn transaction(endings: &Endings, lines: &[(&str, &str)]) -> bool {
        begin(endings);
        for (facility, line) in lines {
            endings.record(facility, line);
        }
        endings.record("TXNCOMMIT", "[thrd:main]: Flushing 3 outstanding message(s) prior to commit");
        acked(endings);
        endings.ended();
        endings.are_final()
    }

    #[test]
    fn a_request_without_a_response_is_not_final() {
        let endings = Endings::default();
        endings.record(LOST.0, LOST.1);
        assert!(endings.are_final(), "the connection to the bootstrap server, before the first transaction");
        assert!(transaction(&endings, &[CONNECTS, REFUSED]));
        endings.record(LOST.0, LOST.1);
        assert!(endings.are_final(), "an idle connection between two transactions");
        assert!(transaction(&endings, &[]));
        for line in [LOST, TIMED_OUT] {
            let endings = Endings::default();
            assert!(!transaction(&endings, &[line, CONNECTS]), "{line:?}");
            assert!(!transaction(&endings, &[]), "the late request can still arrive");
        }
    }

    #[test]
    fn a_session_that_is_authenticated_again_keeps_its_connection() {
        let states = ["UP", "REAUTH", "AUTH_HANDSHAKE", "AUTH_REQ", "UP"];
        let lines: Vec<String> = states
            .windows(2)
            .map(|pair| format!("[thrd:x]: x/1: Broker changed state {} -> {}", pair[0], pair[1]))
            .collect();
        let lines: Vec<(&str, &str)> = lines.iter().map(|line| ("STATE", line.as_str())).collect();
        let endings = Endings::default();
        assert!(transaction(&endings, &lines));
        for (number, state) in states.iter().enumerate() {
            let down = format!("[thrd:x]: x/1: Broker changed state {state} -> DOWN");
            let lost = [&lines[..number], &[("STATE", down.as_str())]].concat();
            assert!(!transaction(&Endings::default(), &lost), "{state}");
        }
        assert!(transaction(&endings, &[]));
    }

    #[test]
    fn a_failed_call_without_an_answer_is_not_final() {
        let endings = Endings::default();
        endings.failed(&KafkaError::MessageProduction(RDKafkaErrorCode::UnknownMemberId));
        assert!(transaction(&endings, &[]), "the broker has rejected the request");
        endings.failed(&KafkaError::MessageProduction(RDKafkaErrorCode::OperationTimedOut));
        assert!(!transaction(&endings, &[]));
    }

    #[test]
    fn a_transaction_whose_lines_are_not_processed_is_waited_for() {
        let endings = Endings::default();
        assert!(transaction(&endings, &[]));
        endings.ended();
        thread::scope(|scope| {
            let waits = scope.spawn(|| endings.are_final());
            thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            endings.record("TXNABORT", "[thrd:main]: Aborted transaction now acked by application");
            assert!(waits.join().unwrap());
        });
    }
}
