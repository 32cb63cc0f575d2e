//! Whether a producer may begin another transaction.
//!
//! When the connection to a coordinator is lost, the client sends the request of a commit or an abort again over another one. The
//! first request may still be on its way: the kernel delivers what a closed socket has sent, and a broker processes what it has
//! received. All transactions of a producer have the same epoch, so a request that arrives after the next one has begun ends
//! that one: a part of its records is committed without its offsets. In the same way, late offsets replace those of the next
//! transaction. A new producer has another epoch, and the broker rejects late requests of the old one.
//!
//! The client does not report that it repeats a request. Its log has a line for each request and response with
//! `debug=protocol`, and for each end of a transaction with `debug=eos` (librdkafka 2.12.1, `rdkafka_broker.c` and
//! `rdkafka_txnmgr.c`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock;

/// The requests that a later transaction must not receive.
const REQUESTS: [&str; 2] = ["EndTxn", "TxnOffsetCommit"];
/// How long to wait for the lines of transactions that have ended. They are queued before the calls return.
const LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// How the transactions of a producer ended. The events of a client are processed by one thread, in order.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Number of transactions that calls have ended.
    ended: AtomicU64,
    /// Number of those whose last line was processed.
    logged: AtomicU64,
    /// Number of requests, and of responses to them.
    sent: AtomicU64,
    received: AtomicU64,
}

impl Endings {
    /// The `debug` contexts of the lines.
    pub const CONTEXTS: &'static str = "eos,protocol";

    /// A commit or an abort has succeeded.
    pub fn ended(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Processes a line of the client's log.
    pub fn record(&self, facility: &str, line: &str) {
        let counted = match facility {
            "SEND" if is_about(line, "Sent ", "Request") => &self.sent,
            "RECV" if is_about(line, "Received ", "Response") => &self.received,
            "TXNCOMMIT" | "TXNABORT" if line.ends_with("transaction now acked by application") => {
                &self.logged
            }
            _ => return,
        };
        counted.fetch_add(1, Ordering::AcqRel);
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
        self.sent.load(Ordering::Acquire) == self.received.load(Ordering::Acquire)
    }
}

/// Whether a line such as `Sent EndTxnRequest (v1, 94 bytes @ 0, CorrId 7)` is about one of the [`REQUESTS`].
fn is_about(line: &str, before: &str, after: &str) -> bool {
    let api = line.split_once(before).and_then(|(_, rest)| Some(rest.split_once(after)?.0));
    api.is_some_and(|api| REQUESTS.contains(&api))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: [&str; 3] = ["TxnOffsetCommit", "EndTxn", "Produce"];
    const ACKED: &str = "[thrd:main]: Committed transaction now acked by application";

    fn send(endings: &Endings, api: &str) {
        let line = format!(
            "[thrd:TxnCoordinator]: TxnCoordinator/1: Sent {api}Request (v1, 94 bytes @ 0, CorrId 7)"
        );
        endings.record("SEND", &line);
    }

    fn receive(endings: &Endings, api: &str) {
        let line = format!("[thrd:x]: x/1: Received {api}Response (v1, 10 bytes, CorrId 7, rtt 1.03ms)");
        endings.record("RECV", &line);
    }

    fn ended() -> Endings {
        let endings = Endings::default();
        for api in SENT {
            send(&endings, api);
            receive(&endings, api);
        }
        endings.record("TXNCOMMIT", "[thrd:main]: Flushing 3 outstanding message(s) prior to commit");
        endings.record("TXNCOMMIT", ACKED);
        endings.ended();
        endings
    }

    #[test]
    fn a_request_without_a_response_is_not_final() {
        assert!(ended().are_final());
        for api in ["TxnOffsetCommit", "EndTxn"] {
            let endings = ended();
            send(&endings, api);
            assert!(!endings.are_final(), "{api}");
            receive(&endings, "Produce");
            assert!(!endings.are_final(), "{api}");
        }
        let endings = ended();
        send(&endings, "Produce");
        assert!(endings.are_final(), "the sequence numbers of records exclude late ones");
    }

    #[test]
    fn a_transaction_whose_lines_are_not_processed_is_waited_for() {
        let endings = ended();
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
