//! What topics have to be like, as a function of what the broker says of them.

use std::collections::HashMap;
use std::time::Duration;

use super::client_config::Settings;
use crate::dedupe::MOST_PARTITIONS;

/// Whether a topic is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The broker does not know it.
    Missing,
    /// This client may not see it, so nobody knows whether it is there.
    Hidden,
    /// It has this many partitions.
    Partitions(usize),
}

impl Shape {
    pub(super) fn partitions(self) -> Option<usize> {
        match self {
            Self::Missing | Self::Hidden => None,
            Self::Partitions(count) => Some(count),
        }
    }
}

/// What speaks against starting, and what only deserves to be known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

type Config = HashMap<String, String>;

/// The least `max.message.bytes` of a state topic: a block of some 230 ids beside a key of up to 600 bytes.
const LEAST_STATE_BATCH: u64 = 8_192;
/// The least `offset.metadata.max.bytes` of a broker: what stands beside an offset takes up to 1,024 bytes.
const LEAST_METADATA: u128 = 1_024;

/// The retention that a state topic is created with: a quarter longer than the window, and at least
/// a day longer, because a segment goes only when its newest record is too old and a restore reads
/// from the start of the log.
pub(super) fn state_retention(window: Duration) -> Duration {
    window + (window / 4).max(Duration::from_hours(24))
}

/// The least retention accepted: the window and a tenth, because stream time may lag behind the
/// clock that the broker deletes by.
fn least_retention(window: Duration) -> Duration {
    window + window / 10
}

/// Judges raw, clean and state topic, in this order.
pub(super) fn judge(
    settings: &Settings,
    shapes: &[&Shape; 3],
    configs: &[Config; 3],
    window: Duration,
) -> Verdict {
    let mut verdict = Verdict::default();
    let names = [("raw", &settings.raw), ("clean", &settings.clean), ("state", &settings.state)];
    for ((role, name), shape) in names.iter().zip(shapes) {
        if **shape == Shape::Missing {
            verdict.problems.push(missing(role, name));
        }
    }
    let [raw, clean, state] = shapes;
    if let Some(partitions) = raw.partitions() {
        if partitions > MOST_PARTITIONS as usize {
            verdict.problems.push(format!(
                "topic {} has {partitions} partitions, more than the {MOST_PARTITIONS} that blocks can name beside a \
                 kind; split the topic",
                settings.raw
            ));
        }
        for ((role, name), shape) in names.iter().zip([raw, clean, state]).skip(1) {
            if let Some(other) = shape.partitions().filter(|other| *other != partitions) {
                let remedy = if other < partitions {
                    format!("run {}", more_partitions(settings, name, partitions))
                } else {
                    format!("re-create it, or run {}", more_partitions(settings, &settings.raw, other))
                };
                verdict.problems.push(format!(
                    "topic {name} has {other} partitions, topic {} has {partitions}: a record keeps its partition, so \
                     the {role} topic needs exactly as many; {remedy}",
                    settings.raw
                ));
            }
        }
    }
    let [raw, clean, state] = configs;
    judge_state(settings, state, window, &mut verdict);
    judge_clean(settings, raw, clean, &mut verdict);
    if raw.get("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        verdict.warnings.push(format!(
            "topic {} is compacted: a record that is compacted away before dedupd reads it never reaches the clean topic",
            settings.raw
        ));
    }
    verdict
}

/// The command that adds partitions.
fn more_partitions(settings: &Settings, name: &str, partitions: usize) -> String {
    format!(
        "kafka-topics.sh --bootstrap-server {} --alter --topic {name} --partitions {partitions}",
        settings.bootstrap_servers
    )
}

/// Of the clean and the state topic, those that have fewer partitions than raw, and how many they have.
pub(super) fn short<'a>(settings: &'a Settings, shapes: &[&Shape; 3]) -> Vec<(&'a str, usize)> {
    let [raw, clean, state] = shapes;
    let wanted = raw.partitions().unwrap_or(0);
    [(settings.clean.as_str(), clean), (settings.state.as_str(), state)]
        .into_iter()
        .filter_map(|(name, shape)| Some((name, shape.partitions().filter(|count| *count < wanted)?)))
        .collect()
}

/// Whether adding partitions to the clean and the state topic is all that they need.
pub(super) fn may_grow(shapes: &[&Shape; 3]) -> bool {
    let [raw, clean, state] = shapes.map(|shape| shape.partitions());
    let fits = |other: Option<usize>| raw.zip(other).is_some_and(|(raw, other)| other <= raw);
    fits(clean) && fits(state) && (clean < raw || state < raw)
}

/// The raw topic has grown beyond the others, and they may not be grown from here.
pub(super) fn left_behind(settings: &Settings, raw: usize, short: &[(&str, usize)]) -> String {
    let (mut counts, mut commands) = (Vec::new(), Vec::new());
    for (name, count) in short {
        counts.push(format!("topic {name} has {count}"));
        commands.push(more_partitions(settings, name, raw));
    }
    format!(
        "topic {} has grown to {raw} partitions, {}: a record keeps its partition, so those of the new partitions have \
         nowhere to go; run {}, and start again: they are read from their beginning. With topics.create = true dedupd \
         adds partitions by itself",
        settings.raw,
        counts.join(" and "),
        commands.join(" and "),
    )
}

/// What everybody should know of a raw topic that has grown.
pub(super) fn grown(raw: &str, from: usize, to: usize) -> String {
    format!(
        "topic {raw} has grown from {from} to {to} partitions; the new ones are read from their beginning. Where \
         producers choose the partition by key, ids now go to other partitions: a copy of what was written before the \
         growth is not recognised in its new partition, and is forwarded, until the window has passed"
    )
}

/// A topic is not the one that the process began with. `role` is its place among raw, clean and state.
pub(super) fn created_anew(settings: &Settings, role: usize, (was, is): (&str, &str)) -> String {
    let (name, hence) = match role {
        0 => (
            &settings.raw,
            "its offsets begin anew, and records of it that lie before the old position were not read. To begin anew \
             with an empty window, give topics.state and group.id other names",
        ),
        1 => (
            &settings.clean,
            "what was forwarded is gone with the old one. Start again to go on into the new one; or, to forward \
             everything that raw still has once more, give topics.state and group.id other names",
        ),
        _ => (
            &settings.state,
            "what the old one held is gone, and local state alone is never believed. Start again to read how to go on",
        ),
    };
    format!(
        "topic {name} was deleted and created again while dedupd ran: its id was {was} and is {is}; {hence}"
    )
}

/// What everybody should know of a clean or state topic with more partitions than raw.
pub(super) fn wider(settings: &Settings, name: &str, count: usize, raw: usize) -> String {
    format!(
        "topic {name} has {count} partitions, topic {} has {raw}: nothing is written to the others, and no start is \
         possible until they are equal; run {}",
        settings.raw,
        more_partitions(settings, &settings.raw, count)
    )
}

fn missing(role: &str, name: &str) -> String {
    if role == "raw" {
        return format!("topic {name} (topics.raw) does not exist; create it, or correct topics.raw");
    }
    format!(
        "topic {name} (topics.{role}) does not exist; create it with as many partitions as the raw topic, or set \
         topics.create = true"
    )
}

fn judge_state(settings: &Settings, config: &Config, window: Duration, verdict: &mut Verdict) {
    let name = &settings.state;
    let alter = |setting: &str| {
        format!(
            "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {name} --add-config {setting}",
            settings.bootstrap_servers
        )
    };
    if let Some(policy) = config.get("cleanup.policy").filter(|policy| *policy != "delete") {
        verdict.problems.push(format!(
            "topic {name} has cleanup.policy={policy}: compaction would delete the state; run {}",
            alter("cleanup.policy=delete")
        ));
    }
    let needed_ms = least_retention(window).as_millis();
    let retention_ms = config.get("retention.ms").and_then(|value| value.parse::<i128>().ok());
    if let Some(ms) = retention_ms.filter(|ms| *ms >= 0 && ms.unsigned_abs() < needed_ms) {
        let enough = state_retention(window).as_millis();
        verdict.problems.push(format!(
            "topic {name} keeps its records for {ms} ms, but a window of {} needs at least {needed_ms} ms to survive \
             the loss of the local state; run {}",
            humantime::format_duration(window),
            alter(&format!("retention.ms={enough}"))
        ));
    }
    if let Some(bytes) = largest_batch(config).filter(|bytes| *bytes < LEAST_STATE_BATCH) {
        verdict.problems.push(format!(
            "topic {name} has max.message.bytes={bytes}: no block of ids fits into less than {LEAST_STATE_BATCH}; run {}",
            alter("max.message.bytes=1048588")
        ));
    }
    if let Some(bytes) = config.get("retention.bytes").filter(|value| !value.starts_with('-')) {
        verdict.warnings.push(format!(
            "topic {name} has retention.bytes={bytes}: when it bites, a restore finds a shorter window; run {}",
            alter("retention.bytes=-1")
        ));
    }
}

/// The largest batch of records that a topic takes, bytes.
pub(super) fn largest_batch(topic: &Config) -> Option<u64> {
    topic.get("max.message.bytes").and_then(|value| value.parse().ok())
}

fn judge_clean(settings: &Settings, raw: &Config, clean: &Config, verdict: &mut Verdict) {
    let name = &settings.clean;
    if let (Some(raw_max), Some(clean_max)) = (largest_batch(raw), largest_batch(clean))
        && clean_max < raw_max
    {
        verdict.warnings.push(format!(
            "topic {name} accepts records up to {clean_max} bytes, topic {} up to {raw_max}: larger ones go by \
             state.on_poison",
            settings.raw
        ));
    }
    if clean.get("message.timestamp.type").is_some_and(|kind| kind == "LogAppendTime") {
        verdict.warnings.push(format!(
            "topic {name} has message.timestamp.type=LogAppendTime: the broker replaces the records' timestamps"
        ));
    }
}

/// Limits of the broker that the configuration breaks.
pub(super) fn limits(settings: &Settings, broker: &Config) -> Vec<String> {
    let limit = |key: &str| broker.get(key).and_then(|value| value.parse::<u128>().ok());
    let mut problems = Vec::new();
    let timeout_ms = settings.transaction_timeout.as_millis();
    if let Some(max) = limit("transaction.max.timeout.ms").filter(|max| timeout_ms > *max) {
        problems.push(format!(
            "batch.transaction_timeout = {timeout_ms} ms is above the broker's transaction.max.timeout.ms = {max}; \
             lower it, or raise the broker's limit"
        ));
    }
    if let Some(max) = limit("offset.metadata.max.bytes").filter(|max| *max < LEAST_METADATA) {
        problems.push(format!(
            "the broker's offset.metadata.max.bytes = {max} is below the {LEAST_METADATA} that a checkpoint beside a \
             committed offset takes; raise it (Kafka's default is 4096)"
        ));
    }
    let session_ms = settings.session_timeout.as_millis();
    if let Some(max) = limit("group.max.session.timeout.ms").filter(|max| session_ms > *max) {
        problems.push(format!(
            "group.session_timeout = {session_ms} ms is above the broker's group.max.session.timeout.ms = {max}; lower it"
        ));
    }
    if let Some(min) = limit("group.min.session.timeout.ms").filter(|min| session_ms < *min) {
        problems.push(format!(
            "group.session_timeout = {session_ms} ms is below the broker's group.min.session.timeout.ms = {min}; raise it"
        ));
    }
    problems
}
