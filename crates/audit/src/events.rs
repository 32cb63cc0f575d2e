//! What a client reports apart from its results: error events and lines of its log.
//!
//! A call fails with "timed out" or "all brokers down" whatever the reason, which is only in these texts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::clock;

/// How many different texts are kept.
const TEXTS_MAX: usize = 16;
/// Maximum age of a text that explains a call which fails now. The client repeats an error every 30 s.
const AGE_MAX: Duration = Duration::from_secs(45);

/// The context of a client: it keeps the last events.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last_error: Option<(KafkaError, String)>,
    last_end: Option<String>,
    /// Texts of errors and of failed connections, without repetitions, the last one at the end.
    texts: Vec<(Instant, String)>,
    first_rejection: Option<Instant>,
}

impl Kept {
    fn text(&mut self, text: &str) {
        self.texts.retain(|(_, known)| known != text);
        if self.texts.len() == TEXTS_MAX {
            self.texts.remove(0);
        }
        self.texts.push((clock::monotonic(), text.to_owned()));
    }
}

impl Events {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last error event and its text.
    pub fn last_error(&self) -> Option<(KafkaError, String)> {
        self.kept().last_error.clone()
    }

    /// The text of the last event about the end of a partition; it is known before the poll that served the event returns.
    pub fn last_end(&self) -> Option<String> {
        self.kept().last_end.clone()
    }

    /// The texts that may explain a call which fails now, the last one at the end.
    pub fn texts(&self) -> Vec<String> {
        let kept = self.kept();
        kept.texts.iter().filter(|(at, _)| at.elapsed() < AGE_MAX).map(|(_, text)| text.clone()).collect()
    }

    /// How long ago a broker first rejected the connection; `None` if none has.
    pub fn rejected_for(&self) -> Option<Duration> {
        self.kept().first_rejection.map(|at| at.elapsed())
    }
}

impl ClientContext for Events {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "FAIL" {
            // A line starts with the name of its thread.
            self.kept().text(message.split_once("]: ").map_or(message, |(_, text)| text));
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let mut kept = self.kept();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PartitionEOF) => {
                kept.last_end = Some(reason.to_owned());
                return;
            }
            // It follows the actual error and adds nothing to it.
            Some(RDKafkaErrorCode::AllBrokersDown) if kept.last_error.is_some() => return,
            Some(code) if is_rejection(code, reason) => {
                kept.first_rejection.get_or_insert_with(clock::monotonic);
            }
            _ => {}
        }
        kept.text(reason);
        kept.last_error = Some((error, reason.to_owned()));
    }
}

impl ConsumerContext for Events {}

/// Whether a broker was reached and rejected the connection. A broker that stops in the middle of a handshake has the same
/// code, and the text of a lost connection.
fn is_rejection(code: RDKafkaErrorCode, reason: &str) -> bool {
    matches!(code, RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SSL)
        && !reason.contains("Broker transport failure")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: RDKafkaErrorCode = RDKafkaErrorCode::AllBrokersDown;

    #[test]
    fn the_cause_is_kept_and_its_consequence_is_not() {
        let events = Events::default();
        events.error(KafkaError::Global(RDKafkaErrorCode::SSL), "ssl://b:1/1: handshake failed");
        events.error(KafkaError::Global(DOWN), "1/1 brokers are down");
        events.log(RDKafkaLogLevel::Info, "FAIL", "[thrd:b:1/1]: b:1/1: Disconnected");
        events.log(RDKafkaLogLevel::Info, "FETCH", "[thrd:b:1/1]: unrelated");
        assert_eq!(events.texts(), ["ssl://b:1/1: handshake failed", "b:1/1: Disconnected"]);
        assert_eq!(events.last_error().unwrap().1, "ssl://b:1/1: handshake failed");
        assert!(events.rejected_for().is_some());
        for number in 0..TEXTS_MAX {
            events.error(KafkaError::Global(RDKafkaErrorCode::Resolve), &number.to_string());
            events.error(KafkaError::Global(RDKafkaErrorCode::Resolve), "again");
        }
        assert_eq!(events.texts().len(), TEXTS_MAX);
        assert_eq!(events.texts().last().map(String::as_str), Some("again"));
    }

    #[test]
    fn a_connection_that_is_lost_during_the_handshake_is_no_rejection() {
        let events = Events::default();
        let text =
            "SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure";
        events.error(KafkaError::Global(RDKafkaErrorCode::Authentication), text);
        events
            .error(KafkaError::Global(RDKafkaErrorCode::BrokerTransportFailure), "b:1/1: Connection refused");
        assert_eq!((events.rejected_for(), events.texts().len()), (None, 2));
    }
}
