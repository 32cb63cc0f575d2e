//! The validated configuration: typed values without invalid combinations.

mod batch;
mod group;
mod http;
mod identity;
mod kafka;
mod kinds;
pub(super) mod local;
mod state;
mod topics;
mod window;

pub use batch::Batch;
pub use group::Group;
pub use http::Http;
pub use identity::{HashChoice, Identity};
pub use kafka::Kafka;
pub use kinds::Kind;
pub use local::Local;
pub use state::State;
pub use topics::Topics;
pub use window::Window;

use super::as_typed::AsTyped;
use super::choices::{Mode, OnMissing, OnProbable, OnRejected};
use super::reading::Reading;
use super::units::duration_text;

/// The effective configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Connection to Kafka.
    pub kafka: Kafka,
    /// The topics.
    pub topics: Topics,
    /// The consumer group.
    pub group: Group,
    /// Source and hash of ids.
    pub identity: Identity,
    /// Handling of duplicates.
    pub mode: Mode,
    /// How long an id is stored.
    pub window: Window,
    /// Kinds of records with separate windows; the first kind that matches a record applies.
    pub kinds: Vec<Kind>,
    /// Limits of a transaction.
    pub batch: Batch,
    /// The local state.
    pub state: State,
    /// Metrics, health and status.
    pub http: Http,
}

/// Converts the texts to typed values. Returns `None` only after a problem was recorded. Problems are recorded for all
/// sections first, and then for the rules between sections.
pub(super) fn validate(typed: &AsTyped, host: &str, reading: &mut Reading<'_>) -> Option<Config> {
    let kafka = kafka::validate(&typed.kafka, reading);
    let topics = topics::validate(&typed.topics, reading);
    let group = group::validate(typed, host, reading);
    let identity = identity::validate(&typed.identity, reading);
    let mode = reading.choice("dedupe.mode", typed.dedupe.mode.as_deref());
    let window = window::validate(&typed.window, reading);
    let kinds = kinds::validate(&typed.kinds, (window.as_ref(), &typed.window), reading);
    let batch = batch::validate(&typed.batch, reading);
    let state = state::validate(&typed.state, reading);
    let http = http::validate(&typed.http, reading);

    if let (Some(group), Some(batch)) = (&group, &batch) {
        check_transaction_timeout(group, batch, reading);
    }
    if typed.topics.dead_letter.is_none() {
        let policies = [
            ("identity.on_missing", identity.as_ref().map(|it| it.on_missing == OnMissing::DeadLetter)),
            ("window.on_probable", window.as_ref().map(|it| it.on_probable == OnProbable::DeadLetter)),
            ("kinds.on_probable", kinds.as_ref().map(|kinds| kinds.iter().any(Kind::needs_dead_letter))),
            ("state.on_poison", state.as_ref().map(|it| it.on_poison == OnRejected::DeadLetter)),
        ];
        policies
            .iter()
            .filter(|(_, is_dead_letter)| *is_dead_letter == Some(true))
            .for_each(|(key, _)| reject_dead_letter(key, reading));
    }
    Some(Config {
        kafka: kafka?,
        topics: topics?,
        group: group?,
        identity: identity?,
        mode: mode?,
        window: window?,
        kinds: kinds?,
        batch: batch?,
        state: state?,
        http: http?,
    })
}

/// A member that lost its session must not leave an open transaction that blocks its successor.
fn check_transaction_timeout(group: &Group, batch: &Batch, reading: &mut Reading<'_>) {
    if batch.transaction_timeout < group.session_timeout {
        return;
    }
    let session = duration_text(group.session_timeout);
    reading.reject(
        "batch.transaction_timeout",
        Some(&duration_text(batch.transaction_timeout)),
        &format!(
            "is not below group.session_timeout = \"{session}\", so a dead instance would block the next one"
        ),
        "lower it, or raise group.session_timeout",
    );
}

fn reject_dead_letter(key: &str, reading: &mut Reading<'_>) {
    reading.reject(
        key,
        Some(OnMissing::DeadLetter.as_str()),
        "requires a dead-letter topic, but topics.dead_letter is not set",
        "set topics.dead_letter, or choose another policy",
    );
}
