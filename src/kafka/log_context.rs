//! What is logged of the errors and log lines of the clients.

use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext};

use super::outages;

/// Makes a client with this configuration log the lines of a `debug` context, beside those that the user has configured.
pub(super) fn log_in_detail(config: &mut ClientConfig, context: &str) {
    let debug = config.get("debug").map_or_else(|| context.to_owned(), |own| format!("{own},{context}"));
    config.set("debug", debug).set_log_level(Level::Debug);
}

/// A context that logs an outage of a broker once for all clients, and all other errors at debug level: failed calls are
/// reported by their callers. The default context logs the end of a partition, which readers wait for, as an error, and
/// dozens of errors during an outage.
pub(super) struct LogContext;

impl LogContext {
    /// Logs an error at debug level.
    pub(super) fn debug(error: &KafkaError, reason: &str) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::debug!(%error, reason, "client error");
        }
    }
}

impl ClientContext for LogContext {
    fn log(&self, level: Level, facility: &str, message: &str) {
        match level {
            // Every client repeats it every ten seconds.
            _ if matches!(facility, "OIDC" | "JWT") => outages::log_missing_token(message),
            // The line of an error that `error` receives too, or that the initialisation of the producer returns: a restart
            // whose predecessor left a transaction open is rejected once.
            _ if matches!(facility, "FAIL" | "GETPID") => {
                tracing::debug!(target: "librdkafka", facility, message);
            }
            Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
                tracing::error!(target: "librdkafka", facility, message);
            }
            Level::Warning => tracing::warn!(target: "librdkafka", facility, message),
            Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, message),
            Level::Debug => tracing::debug!(target: "librdkafka", facility, message),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let is_logged =
            error.rdkafka_error_code().is_some_and(is_connection_error) && outages::log_failure(reason);
        if !is_logged {
            Self::debug(&error, reason);
        }
    }
}

impl ConsumerContext for LogContext {}

fn is_connection_error(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as C;
    matches!(code, C::BrokerTransportFailure | C::Resolve | C::SSL | C::Authentication | C::OperationTimedOut)
}
