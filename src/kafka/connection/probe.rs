//! The first connection of a command, and why it has none.

use indicatif::ProgressBar;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;

use dedupd_tokens::Authenticated;

use super::{ConnectionProblem, ProblemCapture, connection_problem, error_text, metadata};

/// Why a command has no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// The client does not accept its properties.
    #[error("{0}")]
    Settings(String),
    /// For a reason that is recognised.
    #[error("no connection to {servers}: {}", problem.what)]
    Explained { servers: String, problem: ConnectionProblem },
    /// For another reason.
    #[error("no broker of {servers} responds: {why}; check the address, the network and that Kafka runs")]
    Unexplained { servers: String, why: String },
    /// The client lacks the right that the command requires.
    #[error("the brokers do not show topic {topic} to this principal; grant DESCRIBE and {right} on it")]
    Unauthorized { topic: String, right: &'static str },
}

/// A client that has reached a broker. It explains why later requests fail, also those of other clients with its configuration.
pub struct Probe<'a> {
    pub(in crate::kafka) client: Authenticated<BaseConsumer<ProblemCapture>>,
    config: ClientConfig,
    servers: &'a str,
}

impl<'a> Probe<'a> {
    /// Requests the metadata of the topic; it need not exist. `right` is what the command requires on it beside DESCRIBE.
    pub fn connect(
        config: ClientConfig,
        servers: &'a str,
        topic: &str,
        right: &'static str,
    ) -> Result<Self, NoConnection> {
        let client = ProblemCapture::reader(config.clone())
            .map_err(|error| NoConnection::Settings(error_text(&error)))?;
        let probe = Self { client, config, servers };
        // On a terminal only; a broker that is down is awaited for some seconds.
        let bar = ProgressBar::new_spinner().with_message(format!("connecting to {servers}"));
        bar.tick();
        let found = metadata(&probe.client, &probe.config, topic);
        bar.finish_and_clear();
        let found = found.map_err(|(error, problem)| probe.no_connection(problem, &error))?;
        let is_hidden = found.topics().iter().any(|it| {
            it.name() == topic
                && it.error().map(RDKafkaErrorCode::from) == Some(RDKafkaErrorCode::TopicAuthorizationFailed)
        });
        if is_hidden { Err(NoConnection::Unauthorized { topic: topic.to_owned(), right }) } else { Ok(probe) }
    }

    /// Why a later request has failed.
    pub fn failed(&self, why: &dyn std::fmt::Display) -> NoConnection {
        self.no_connection(connection_problem(&self.client, &self.config), why)
    }

    fn no_connection(&self, problem: Option<ConnectionProblem>, why: &dyn std::fmt::Display) -> NoConnection {
        let servers = self.servers.to_owned();
        if let Some(problem) = problem {
            return NoConnection::Explained { servers, problem };
        }
        let last = self.client.context().last();
        NoConnection::Unexplained { servers, why: last.map_or_else(|| why.to_string(), |(_, reason)| reason) }
    }
}
