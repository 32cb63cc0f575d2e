//! Defaults and checks that depend on several keys.

use std::path::PathBuf;
use std::time::Duration;

use super::choices::{OnMissing, OnPoison, OnProbable, OnStop, Overflow, Scope};
use super::forms::topic;
use super::keys::{
    BatchConfig, DedupeConfig, GroupConfig, IdentityConfig, KafkaConfig, SchemasConfig, StateConfig,
    WindowConfig,
};
use super::kinds::KindConfig;
use super::problem::ValueFault;
use super::reading::ConfigReading;
use super::topic_name::TopicName;
use crate::dedupe::{IdSource, RecordField};
use crate::units::duration_text;

/// The default of `topics.state`.
pub(super) fn default_state(clean: Option<&TopicName>, reading: &mut ConfigReading<'_>) -> Option<TopicName> {
    topic("topics.state", &format!("{}.dedupd", clean?), reading)
}

/// The default of `group.id`. It consists of the topic names, which are checked separately.
pub(super) fn default_group(reading: &ConfigReading<'_>) -> Option<String> {
    Some(format!("dedupd.{}.{}", reading.text("topics.raw")?, reading.text("topics.clean")?))
}

/// Rejects every topic that is the same as an earlier one: dedupd would read its own output, or mix records with state.
pub(super) fn distinct(topics: &[(&str, Option<&TopicName>)], reading: &mut ConfigReading<'_>) {
    for (place, (key, topic)) in topics.iter().enumerate() {
        let Some(topic) = topic else { continue };
        let earlier = topics.iter().take(place).find(|(_, other)| *other == Some(*topic));
        if let Some((other, _)) = earlier {
            let what = format!("is the same topic as {other}");
            reading.reject(key, Some(topic.as_str()), ValueFault::new(what, "give different topics"));
        }
    }
}

/// Rejects a client id for all clients where the members of the group are recognised by the client ids of dedupd.
pub(super) fn recognised_members(
    kafka: Option<&KafkaConfig>,
    group: Option<&GroupConfig>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(kafka), Some(group)) = (kafka, group) else { return };
    if let Some(id) = kafka.properties.get("client.id").filter(|_| !group.static_membership) {
        let what = "requires group.static_membership: instances recognise the members of the group by their client ids, or by \
                    their static membership";
        let remedy = "leave it out, or set group.static_membership = true";
        reading.reject("kafka.properties.client.id", Some(id), ValueFault::new(what, remedy));
    }
}

/// Rejects sources that need a schema when none is configured.
pub(super) fn schemas_for(
    key: &str,
    sources: Option<&[IdSource]>,
    schemas: Option<&SchemasConfig>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(sources), Some(schemas)) = (sources, schemas) else { return };
    for source in sources {
        let (file, name) = match source.needs_schema() {
            Some(RecordField::Key) => (&schemas.key, "schemas.key"),
            Some(RecordField::Value) => (&schemas.value, "schemas.value"),
            None => continue,
        };
        if file.is_none() && schemas.registry.is_none() {
            let remedy = format!("set schemas.registry to the URL of the registry, or {name} to a file");
            reading.reject(key, Some(&source.to_string()), ValueFault::new("needs a schema", remedy));
        }
    }
}

/// The same for the kinds.
pub(super) fn schemas_for_kinds(
    kinds: Option<&[KindConfig]>,
    schemas: Option<&SchemasConfig>,
    reading: &mut ConfigReading<'_>,
) {
    for (number, kind) in kinds.into_iter().flatten().enumerate() {
        schemas_for(
            &format!("kinds[{number}].from"),
            Some(std::slice::from_ref(&kind.from)),
            schemas,
            reading,
        );
    }
}

/// A key that was read; `None` after a problem.
type MaybeRead<T> = Option<Option<T>>;

/// A user needs a password, and a password a user.
pub(super) fn credentials(
    (username, password): (&MaybeRead<String>, &MaybeRead<PathBuf>),
    reading: &mut ConfigReading<'_>,
) {
    match (username.as_ref().and_then(Option::as_ref), password.as_ref().and_then(Option::as_ref)) {
        (Some(username), None) => {
            let fault = ValueFault::new("has no password", "set schemas.password_file");
            reading.reject("schemas.username", Some(username), fault);
        }
        (None, Some(_)) => {
            let fault = ValueFault::new("has no effect without a user", "set schemas.username");
            reading.reject("schemas.password_file", None, fault);
        }
        _ => {}
    }
}

/// A request has one kind of authorization.
pub(super) fn token_alone(
    (username, token): (&MaybeRead<String>, &MaybeRead<PathBuf>),
    reading: &mut ConfigReading<'_>,
) {
    if let (Some(Some(_)), Some(Some(_))) = (username, token) {
        let fault = ValueFault::new("cannot be combined with schemas.username", "set one of them");
        reading.reject("schemas.token_file", None, fault);
    }
}

/// The certificate of a client needs its key, and the key its certificate.
pub(super) fn certificate_with_key(
    (certificate, key): (&MaybeRead<PathBuf>, &MaybeRead<PathBuf>),
    reading: &mut ConfigReading<'_>,
) {
    let is_set = |it: &MaybeRead<PathBuf>| matches!(it, Some(Some(_)));
    if is_set(certificate) != is_set(key) {
        let (key, other) = if is_set(key) {
            ("schemas.private_key_file", "schemas.certificate_file")
        } else {
            ("schemas.certificate_file", "schemas.private_key_file")
        };
        let fault = ValueFault::new(format!("has no effect without {other}"), format!("set {other}"));
        reading.reject(key, None, fault);
    }
}

/// `rekey` would read what it writes. A regular expression may match the target topic, because `rekey` never reads that.
pub(super) fn target_is_no_source(
    from: Option<&[String]>,
    to: Option<&TopicName>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(from), Some(to)) = (from, to) else { return };
    if from.iter().any(|name| name == to.as_str()) {
        let fault = ValueFault::new("is also in rekey.from", "give a topic that is not read");
        reading.reject("rekey.to", Some(to.as_str()), fault);
    }
}

/// The topics that `dedupd run` writes with the same configuration, by their keys.
pub(super) fn written_by_run(reading: &ConfigReading<'_>) -> Vec<(&'static str, String)> {
    let default_state = || reading.text("topics.clean").map(|clean| format!("{clean}.dedupd"));
    let keys = ["topics.clean", "topics.state", "topics.dead_letter", "topics.duplicates"];
    let name = |key| match key {
        "topics.state" => reading.text(key).map(str::to_owned).or_else(default_state),
        _ => reading.text(key).map(str::to_owned),
    };
    keys.into_iter().filter_map(|key| Some((key, name(key)?))).collect()
}

/// `rekey` feeds `run`: what it writes to a topic of `run` is not de-duplicated, and what it reads there comes back in a circle.
pub(super) fn rekey_before_run(
    from: Option<&[String]>,
    to: Option<&TopicName>,
    reading: &mut ConfigReading<'_>,
) {
    for (key, name) in written_by_run(reading) {
        let what = format!("is {key}, which dedupd run writes");
        if to.is_some_and(|to| to.as_str() == name) {
            let fault = ValueFault::new(what.as_str(), "give the topic that dedupd run reads, topics.raw");
            reading.reject("rekey.to", Some(&name), fault);
        }
        if from.unwrap_or_default().contains(&name) {
            let fault = ValueFault::new(
                what,
                "leave it out; for a stage behind dedupd run use another configuration file",
            );
            reading.reject("rekey.from", Some(&name), fault);
        }
    }
}

/// Rejects filters that are shorter than the exact window, in `[window]` or a table of `[[kinds]]`.
pub(super) fn bloom_length(
    at: &str,
    (exact, bloom): (Option<Duration>, Option<Duration>),
    reading: &mut ConfigReading<'_>,
) {
    let (Some(exact), Some(bloom)) = (exact, bloom) else { return };
    if bloom < exact {
        let (exact, key) = (duration_text(exact), format!("{at}.bloom"));
        let what = format!("is shorter than {at}.exact = \"{exact}\"");
        let remedy = format!("set {key} = \"{exact}\" or longer, or leave it out");
        reading.reject(&key, Some(&duration_text(bloom)), ValueFault::new(what, remedy));
    }
}

/// Rejects a window that evicts and has filters, which are made of sealed ids, and one without a number of slots.
pub(super) fn evicting_window(
    (window, kinds): (Option<&WindowConfig>, Option<&[KindConfig]>),
    reading: &mut ConfigReading<'_>,
) {
    let Some(window) = window.filter(|window| window.overflow == Overflow::Evict) else { return };
    let named = kinds.unwrap_or_default().iter().filter_map(|kind| kind.window.as_ref());
    if named.chain([window]).any(|window| window.bloom > window.exact) {
        let what = "cannot be combined with a longer window.bloom, or bloom in [[kinds]]";
        let remedy = "remove bloom, or set window.overflow = \"shrink\"";
        reading.reject("window.overflow", Some(Overflow::Evict.as_str()), ValueFault::new(what, remedy));
    } else if window.max_ids.is_none() && !reading.is_set("window.max_ids") {
        let what = "needs window.max_ids, the number of slots of its table";
        let remedy = "set it; dedupd plan prints the slots that a window needs";
        reading.reject("window.overflow", Some(Overflow::Evict.as_str()), ValueFault::new(what, remedy));
    }
}

/// A batch must end before its transaction does.
pub(super) fn interval_below_timeout(
    interval: Option<Duration>,
    timeout: Option<Duration>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(interval), Some(timeout)) = (interval, timeout) else { return };
    if interval >= timeout {
        let what = format!(
            "is not below batch.transaction_timeout = \"{}\", so every transaction would time out",
            duration_text(timeout)
        );
        let fault = ValueFault::new(what, "lower it, or raise batch.transaction_timeout");
        reading.reject("batch.interval", Some(&duration_text(interval)), fault);
    }
}

/// A member that lost its session must not leave an open transaction that blocks its successor.
pub(super) fn timeout_below_session(
    group: Option<&GroupConfig>,
    batch: Option<&BatchConfig>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(group), Some(batch)) = (group, batch) else { return };
    if batch.transaction_timeout >= group.session_timeout {
        let what = format!(
            "is not below group.session_timeout = \"{}\", so a dead instance would block the next one",
            duration_text(group.session_timeout)
        );
        let fault = ValueFault::new(what, "lower it, or raise group.session_timeout");
        let timeout = duration_text(batch.transaction_timeout);
        reading.reject("batch.transaction_timeout", Some(&timeout), fault);
    }
}

/// Only a worker that has all partitions finds the copies in all of them.
pub(super) fn one_worker(
    group: Option<&GroupConfig>,
    dedupe: Option<&DedupeConfig>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(group), Some(dedupe)) = (group, dedupe) else { return };
    if dedupe.scope == Scope::Topic && group.workers > 1 {
        let what = "is above 1, but with dedupe.scope = \"topic\" one worker processes all partitions";
        let remedy = "set group.workers = 1; or set dedupe.scope = \"partition\": workers and instances then share the \
                      partitions, an id counts once in each of them, and copies in other partitions are forwarded";
        reading.reject("group.workers", Some(&group.workers.to_string()), ValueFault::new(what, remedy));
    }
}

/// Only a static member that is restarted resumes its membership, and a spare takes over only when the group is empty.
pub(super) fn remaining_member(
    group: Option<&GroupConfig>,
    dedupe: Option<&DedupeConfig>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(group), Some(dedupe)) = (group, dedupe) else { return };
    if group.on_stop == OnStop::Leave {
        return;
    }
    let what = match (dedupe.scope, group.static_membership) {
        (Scope::Topic, _) => {
            "is for dedupe.scope = \"partition\": in topic scope a spare could take over only after group.session_timeout"
        }
        (Scope::Partition, false) => {
            "requires group.static_membership: a restarted instance could not resume its membership"
        }
        (Scope::Partition, true) => return,
    };
    let fault = ValueFault::new(what, "set group.on_stop = \"leave\"");
    reading.reject("group.on_stop", Some(group.on_stop.as_str()), fault);
}

/// A policy `dead_letter` requires `topics.dead_letter`.
pub(super) fn dead_letter_topic(
    identity: Option<&IdentityConfig>,
    (window, kinds): (Option<&WindowConfig>, Option<&[KindConfig]>),
    state: Option<&StateConfig>,
    reading: &mut ConfigReading<'_>,
) {
    if reading.is_set("topics.dead_letter") {
        return;
    }
    let to_dead_letter = |window: &WindowConfig| window.on_probable == OnProbable::DeadLetter;
    let in_kind =
        |kinds: &[KindConfig]| kinds.iter().filter_map(|kind| kind.window.as_ref()).any(to_dead_letter);
    for (key, is_dead_letter) in [
        ("identity.on_missing", identity.is_some_and(|it| it.on_missing == OnMissing::DeadLetter)),
        ("window.on_probable", window.is_some_and(to_dead_letter)),
        ("kinds.on_probable", kinds.is_some_and(in_kind)),
        ("state.on_poison", state.is_some_and(|it| it.on_poison == OnPoison::DeadLetter)),
    ] {
        if is_dead_letter {
            let what = "requires a dead-letter topic, but topics.dead_letter is not set";
            let fault = ValueFault::new(what, "set topics.dead_letter, or choose another policy");
            reading.reject(key, Some(OnMissing::DeadLetter.as_str()), fault);
        }
    }
}
