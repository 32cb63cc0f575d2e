//! The requirements on topics and brokers, checked on the values that the broker reports. Sends no requests.

use std::collections::HashMap;
use std::time::Duration;

use super::acceptance::shortfalls;
use super::admin::Wanted;
use super::client_config::Settings;
use super::creating::Create;
use crate::config::Scope;
use crate::dedupe::MOST_PARTITIONS;
use crate::units::duration_text;

/// Whether a topic exists, and its number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicShape {
    /// The topic does not exist.
    Missing,
    /// This client may not describe it, so it is unknown whether it exists.
    Unauthorized,
    /// The topic exists with this many partitions.
    Partitions(usize),
    /// The topic does not exist; a start creates it with this many partitions.
    Planned(usize),
}

impl TopicShape {
    pub(super) fn partitions(self) -> Option<usize> {
        match self {
            Self::Missing | Self::Unauthorized => None,
            Self::Partitions(count) | Self::Planned(count) => Some(count),
        }
    }

    pub(super) fn exists(self) -> bool {
        matches!(self, Self::Partitions(_))
    }
}

/// Problems prevent the start; warnings do not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

/// The settings of a topic, or of a broker.
pub(super) type TopicConfig = HashMap<String, String>;

/// Minimum `max.message.bytes` of a state topic: a block of about 230 ids with a key of up to 600 bytes.
const MIN_STATE_BATCH: u64 = 8_192;
/// Minimum `offset.metadata.max.bytes` of a broker: checkpoint metadata has up to 1,024 bytes.
const MIN_METADATA: u128 = 1_024;

/// What else the compaction of raw means when its key is the id.
const COMPACTED_IDS: &str = "; and identity.from is the key: each update of a key and its tombstone is a duplicate of the first record of \
                             that key, and is dropped. Choose a source that differs for each update";

/// The retention of a created state topic: a quarter longer than the window, and at least a day longer. The broker deletes a
/// segment only when its newest record is too old, and a restore reads from the start of the log.
pub(super) fn state_retention(window: Duration) -> Duration {
    window + (window / 4).max(Duration::from_hours(24))
}

/// Minimum retention of a state topic: the window plus a tenth, because stream time may lag behind the clock that the broker
/// uses for retention.
fn min_retention(window: Duration) -> Duration {
    window + window / 10
}

/// Checks the raw, clean and state topics, in this order, and the side topics.
pub(super) fn check(
    settings: &Settings,
    shapes: &[&TopicShape; 3],
    configs: &[TopicConfig; 3],
    side: &[(String, TopicConfig)],
    wanted: Wanted,
) -> Findings {
    let mut findings = Findings::default();
    let names = [("raw", &settings.raw), ("clean", &settings.clean), ("state", &settings.state)];
    // What is missing beside raw is created when raw exists.
    let [raw, clean, state] = shapes;
    let creates = wanted.create != Create::Never && **raw == TopicShape::Missing;
    let required = if creates { 1 } else { names.len() };
    for ((role, name), shape) in names.iter().zip(shapes).take(required) {
        if **shape == TopicShape::Missing {
            findings.problems.push(missing_topic(settings, role, name));
        }
    }
    if let Some(partitions) = raw.partitions() {
        if partitions > MOST_PARTITIONS as usize {
            findings.problems.push(format!(
                "topic {} has {partitions} partitions, more than the maximum of {MOST_PARTITIONS} that the block format \
                 allows; split the topic",
                settings.raw
            ));
        }
        for ((role, name), shape) in names.iter().zip([raw, clean, state]).skip(1) {
            if let Some(other) = shape.partitions().filter(|other| *other != partitions) {
                let remedy = if other < partitions {
                    format!("run {}", more_partitions(settings, name, partitions))
                } else {
                    format!("recreate it, or run {}", more_partitions(settings, &settings.raw, other))
                };
                findings.problems.push(format!(
                    "topic {name} has {other} partitions, topic {} has {partitions}: a record keeps its partition, so \
                     the {role} topic must have exactly as many; {remedy}",
                    settings.raw
                ));
            }
        }
    }
    let [raw, clean, state] = configs;
    check_state(settings, state, wanted.window, &mut findings);
    for (name, topic) in
        std::iter::once((&settings.clean, clean)).chain(side.iter().map(|(name, it)| (name, it)))
    {
        findings.warnings.extend(shortfalls(&settings.bootstrap_servers, name, topic, &settings.raw, raw));
    }
    check_policies(settings, clean, side, &mut findings);
    if is_compacted(raw) {
        let dropped = if wanted.key_is_id { COMPACTED_IDS } else { "" };
        findings.warnings.push(format!(
            "topic {} is compacted: a record that is compacted away before dedupd reads it never reaches the clean topic{dropped}",
            settings.raw
        ));
    }
    findings
}

/// Warns about settings that change, delete or reject records.
fn check_policies(
    settings: &Settings,
    clean: &TopicConfig,
    side: &[(String, TopicConfig)],
    findings: &mut Findings,
) {
    if clean.get("message.timestamp.type").is_some_and(|kind| kind == "LogAppendTime") {
        findings.warnings.push(format!(
            "topic {} has message.timestamp.type=LogAppendTime: the broker replaces the timestamps of the records, so they are not \
             those of raw, and dedupd audit counts each record as altered; run {}",
            settings.clean,
            altered(&settings.bootstrap_servers, &settings.clean, "message.timestamp.type=CreateTime")
        ));
    }
    for (name, _) in side.iter().filter(|(_, topic)| is_compacted(topic)) {
        findings.warnings.push(format!(
            "topic {name} is compacted: the broker rejects records without a key, and deletes all but the last record of a key; \
             run {}",
            altered(&settings.bootstrap_servers, name, "cleanup.policy=delete")
        ));
    }
    if is_compacted(clean) {
        findings.warnings.push(format!(
            "topic {} is compacted: the broker rejects records without a key, and a transaction that a broker leaves without \
             some of its markers may need an operator once compaction has removed its last record",
            settings.clean
        ));
    }
}

fn is_compacted(topic: &TopicConfig) -> bool {
    topic.get("cleanup.policy").is_some_and(|policy| policy.contains("compact"))
}

/// The command that changes a setting of a topic.
pub(super) fn altered(servers: &str, name: &str, setting: &str) -> String {
    format!(
        "kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {name} --add-config {setting}"
    )
}

/// The command that adds partitions.
fn more_partitions(settings: &Settings, name: &str, partitions: usize) -> String {
    format!(
        "kafka-topics.sh --bootstrap-server {} --alter --topic {name} --partitions {partitions}",
        settings.bootstrap_servers
    )
}

/// Those of the clean and the state topic that have fewer partitions than raw, with their partition counts.
pub(super) fn too_few_partitions<'a>(
    settings: &'a Settings,
    shapes: &[&TopicShape; 3],
) -> Vec<(&'a str, usize)> {
    let [raw, clean, state] = shapes;
    let wanted = raw.partitions().unwrap_or(0);
    [(settings.clean.as_str(), clean), (settings.state.as_str(), state)]
        .into_iter()
        .filter_map(|(name, shape)| Some((name, shape.partitions().filter(|count| *count < wanted)?)))
        .collect()
}

/// Whether the clean and the state topic only need more partitions.
pub(super) fn can_grow(shapes: &[&TopicShape; 3]) -> bool {
    let [raw, clean, state] = shapes.map(|shape| shape.partitions());
    let fits = |other: Option<usize>| raw.zip(other).is_some_and(|(raw, other)| other <= raw);
    fits(clean) && fits(state) && (clean < raw || state < raw)
}

/// The error when the raw topic has grown and dedupd may not add partitions to the others (`topics.create = false`).
pub(super) fn growth_problem(settings: &Settings, raw: usize, too_small: &[(&str, usize)]) -> String {
    let (mut counts, mut commands) = (Vec::new(), Vec::new());
    for (name, count) in too_small {
        counts.push(format!("topic {name} has {count}"));
        commands.push(more_partitions(settings, name, raw));
    }
    format!(
        "topic {} has grown to {raw} partitions, {}: a record keeps its partition, so records of the new partitions cannot \
         be forwarded; run {}, and restart dedupd: it reads the new partitions from the earliest offset. With \
         topics.create = true dedupd adds the partitions",
        settings.raw,
        counts.join(" and "),
        commands.join(" and "),
    )
}

/// The warning about a raw topic that has grown.
pub(super) fn growth_warning(raw: &str, from: usize, to: usize, scope: Scope) -> String {
    let grown = format!(
        "topic {raw} has grown from {from} to {to} partitions; the new ones are read from the earliest offset"
    );
    match scope {
        Scope::Topic => grown,
        Scope::Partition => format!(
            "{grown}. If producers choose the partition by key, ids now go to other partitions: with dedupe.scope = \
             \"partition\" a duplicate of a record from before the growth is not detected in its new partition and is \
             forwarded, until the window has passed"
        ),
    }
}

/// The error when a topic has been recreated since the start. `role` is its index among raw, clean and state.
pub(super) fn recreated(settings: &Settings, role: usize, was: &str, is: &str) -> String {
    let (name, advice) = lost(settings, role);
    format!(
        "topic {name} was deleted and recreated while dedupd ran: its id was {was} and is now {is}; {advice}"
    )
}

/// The error when a topic has been deleted since the start.
pub(super) fn deleted(settings: &Settings, role: usize) -> String {
    let (name, advice) = lost(settings, role);
    format!(
        "topic {name} does not exist any more: it was deleted while dedupd ran. Find out who deleted it, and create it again, with as many \
         partitions; {advice}"
    )
}

/// The name of a deleted topic, and what follows from its loss.
fn lost(settings: &Settings, role: usize) -> (&str, &'static str) {
    match role {
        0 => (
            &settings.raw,
            "its offsets start at 0 again, and its records before the old position were not read. To start with an empty \
             window, set topics.state and group.id to new names",
        ),
        1 => (
            &settings.clean,
            "the forwarded records were deleted with the old topic. Restart dedupd to continue with the new topic; or, to \
             forward again every record that raw still retains, set topics.state and group.id to new names",
        ),
        _ => (
            &settings.state,
            "the state in the old topic is lost, and local state is never used without it. Restart dedupd: the error \
             message of the start lists the options",
        ),
    }
}

/// The warning about a clean or state topic with more partitions than raw.
pub(super) fn extra_partitions(settings: &Settings, name: &str, count: usize, raw: usize) -> String {
    format!(
        "topic {name} has {count} partitions, topic {} has {raw}: nothing is written to the extra partitions, and dedupd \
         cannot start again until the counts are equal; run {}",
        settings.raw,
        more_partitions(settings, &settings.raw, count)
    )
}

fn missing_topic(settings: &Settings, role: &str, name: &str) -> String {
    if role == "raw" {
        return format!(
            "topic {name} (topics.raw) does not exist; correct topics.raw, or create it: kafka-topics.sh --bootstrap-server {} --create --topic {name}",
            settings.bootstrap_servers
        );
    }
    format!(
        "topic {name} (topics.{role}) does not exist; create it with as many partitions as the raw topic, or set \
         topics.create = true (--create)"
    )
}

fn check_state(settings: &Settings, config: &TopicConfig, window: Duration, findings: &mut Findings) {
    let name = &settings.state;
    let alter = |setting: &str| altered(&settings.bootstrap_servers, name, setting);
    if let Some(policy) = config.get("cleanup.policy").filter(|policy| *policy != "delete") {
        findings.problems.push(format!(
            "topic {name} has cleanup.policy={policy}: compaction would delete the state; run {}",
            alter("cleanup.policy=delete")
        ));
    }
    let needed = min_retention(window);
    if let Some(kept) = retention(config).filter(|kept| *kept < needed) {
        let enough = state_retention(window).as_millis();
        findings.problems.push(format!(
            "topic {name} retains its records for {}, but a window of {} needs at least {} to survive \
             the loss of the local state; run {}",
            duration_text(kept),
            duration_text(window),
            duration_text(needed),
            alter(&format!("retention.ms={enough}"))
        ));
    }
    if let Some(bytes) = largest_batch(config).filter(|bytes| *bytes < MIN_STATE_BATCH) {
        findings.problems.push(format!(
            "topic {name} has max.message.bytes={bytes}: a block of ids needs at least {MIN_STATE_BATCH} bytes; run {}",
            alter("max.message.bytes=1048588")
        ));
    }
    if let Some(bytes) = config.get("retention.bytes").filter(|value| !value.starts_with('-')) {
        findings.warnings.push(format!(
            "topic {name} has retention.bytes={bytes}: once that limit deletes records, a restore has a shorter \
             window; run {}",
            alter("retention.bytes=-1")
        ));
    }
}

/// `retention.ms` of a topic; `None` without a limit.
pub(super) fn retention(topic: &TopicConfig) -> Option<Duration> {
    topic.get("retention.ms").and_then(|value| value.parse().ok()).map(Duration::from_millis)
}

/// `max.message.bytes` of a topic, bytes.
pub(super) fn largest_batch(topic: &TopicConfig) -> Option<u64> {
    topic.get("max.message.bytes").and_then(|value| value.parse().ok())
}

/// Problems with limits of the broker that the configuration exceeds.
pub(super) fn limits(settings: &Settings, broker: &TopicConfig) -> Vec<String> {
    let limit = |key: &str| broker.get(key).and_then(|value| value.parse::<u128>().ok());
    let mut problems = Vec::new();
    let timeout_ms = settings.transaction_timeout.as_millis();
    if let Some(max) = limit("transaction.max.timeout.ms").filter(|max| timeout_ms > *max) {
        problems.push(format!(
            "batch.transaction_timeout = {timeout_ms} ms is above the broker's transaction.max.timeout.ms = {max}; \
             lower it, or raise the broker's limit"
        ));
    }
    if let Some(max) = limit("offset.metadata.max.bytes").filter(|max| *max < MIN_METADATA) {
        problems.push(format!(
            "the broker's offset.metadata.max.bytes = {max} is below the {MIN_METADATA} bytes that the checkpoint \
             metadata of a committed offset needs; raise it (Kafka's default is 4096)"
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
