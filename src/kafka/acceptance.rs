//! Which records a topic accepts, and how long it keeps them: what a created topic takes from raw, and in what an existing one falls
//! short of its source. Sends no requests.

use super::topics::{TopicConfig, altered, largest_batch};

/// What a created topic accepts beyond raw, bytes: the headers that dedupd adds. They take up to 1.5 KiB with names of topics and groups of 249
/// characters, and the text of a broker's error.
const HEADERS: u64 = 4_096;
/// Limits on timestamps. A broker compares a timestamp with the time of writing, which is later than that of raw, by hours after an outage.
const TIMESTAMP_LIMITS: [&str; 3] =
    [BEFORE, "message.timestamp.after.max.ms", "message.timestamp.difference.max.ms"];
const BEFORE: &str = "message.timestamp.before.max.ms";
/// How long, and up to which size of a partition, a topic keeps its records.
const RETENTION: [&str; 2] = ["retention.ms", "retention.bytes"];

/// `max.message.bytes` of a topic that accepts all records of raw: half as much again, because the producer of raw may have compressed with a
/// better codec or level, and the headers.
fn accepting(raw: u64) -> u64 {
    (raw + raw / 2 + HEADERS).min(i32::MAX.unsigned_abs().into())
}

/// The settings of a topic that accepts whatever raw accepted, and keeps it as long. A side topic also has several records with one key.
pub(super) fn inherited(raw: &TopicConfig, is_side: bool) -> Vec<(&'static str, String)> {
    let own = |key: &'static str| Some((key, raw.get(key)?.clone()));
    // A broker rejects names that it does not know.
    let unlimited = |key: &'static str| raw.contains_key(key).then(|| (key, i64::MAX.to_string()));
    let policy = if is_side { Some(("cleanup.policy", "delete".to_owned())) } else { own("cleanup.policy") };
    let size = largest_batch(raw).map(|bytes| ("max.message.bytes", accepting(bytes).to_string()));
    let fixed = [("message.timestamp.type", "CreateTime"), ("compression.type", "producer")];
    let all = fixed.into_iter().map(|(key, value)| (key, value.to_owned())).chain(policy).chain(size);
    all.chain(RETENTION.into_iter().filter_map(own))
        .chain(TIMESTAMP_LIMITS.into_iter().filter_map(unlimited))
        .collect()
}

/// A limit of a topic. Negative values stand for none.
fn limit(topic: &TopicConfig, key: &str) -> Option<u64> {
    let value: i64 = topic.get(key)?.parse().ok()?;
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// A value of [`RETENTION`]; a topic that does not delete has no limit.
fn retention(topic: &TopicConfig, key: &str) -> Option<u64> {
    let is_deleting = topic.get("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
    if is_deleting { limit(topic, key) } else { Some(u64::MAX) }
}

/// What a topic refuses or loses of the records that another one, which is copied to it, accepts and keeps: a sentence for each setting.
pub(super) fn shortfalls(
    servers: &str,
    name: &str,
    topic: &TopicConfig,
    from: &str,
    source: &TopicConfig,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |what: String, setting: String| {
        found.push(format!("topic {name} {what}; run {}", altered(servers, name, &setting)));
    };
    if let (Some(accepts), Some(most)) = (largest_batch(topic), largest_batch(source))
        && accepts < most
    {
        let what = format!(
            "accepts records up to {accepts} bytes, topic {from} up to {most}: larger ones are rejected"
        );
        note(what, format!("max.message.bytes={}", accepting(most)));
    }
    let is_stamped =
        |it: &TopicConfig| it.get("message.timestamp.type").is_some_and(|it| it == "LogAppendTime");
    let kept = retention(source, "retention.ms");
    for key in TIMESTAMP_LIMITS.into_iter().filter(|_| !is_stamped(topic)) {
        let Some(allows) = limit(topic, key) else { continue };
        let accepted = if is_stamped(source) { 0 } else { limit(source, key).unwrap_or(u64::MAX) };
        // A record is read until the source deletes it.
        let aged = if key == TIMESTAMP_LIMITS[1] { 0 } else { kept.unwrap_or(u64::MAX) };
        if allows < accepted.saturating_add(aged).min(i64::MAX.unsigned_abs()) {
            let what = format!(
                "has {key}={allows}, measured when a record is written to it: it rejects records that topic {from} has"
            );
            note(what, format!("{key}={}", i64::MAX));
        }
    }
    for key in RETENTION {
        if let (Some(shorter), Some(longer)) = (retention(topic, key), retention(source, key))
            && shorter < longer
        {
            let longer = if longer == u64::MAX { "-1".to_owned() } else { longer.to_string() };
            let what = format!(
                "has {key}={shorter}, topic {from} {longer}: it loses records that topic {from} still has, old ones at once"
            );
            note(what, format!("{key}={longer}"));
        }
    }
    found
}
