//! Defaults and checks that depend on several keys.

use std::time::Duration;

use super::choices::{OnConflict, OnMissing, OnPoison, OnProbable, OnStop, Overflow, Scope};
use super::forms::{FLAG, Maybe, Span, Word, topic};
use super::insight::InsightSource;
use super::keys::{SECOND, SESSION_TIMEOUT, WORKERS, compared};
use super::problem::ValueFault;
use super::reading::ConfigReading;
use super::section::joined;
use super::topic_name::TopicName;
use crate::dedupe::{IdPart, IdSource, RecordField};
use crate::units::duration_text;

/// The default of `topics.state`.
pub(super) fn default_state(clean: Option<&TopicName>, reading: &mut ConfigReading<'_>) -> Option<TopicName> {
    topic("topics.state", &state_of(clean?.as_str()), reading)
}

/// The state topic of a clean topic.
fn state_of(clean: &str) -> String {
    format!("{clean}.dedupd")
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

/// The checks over several sections. They read their keys again: the problem of another key must not hide theirs.
pub(super) fn across_sections(reading: &mut ConfigReading<'_>) {
    recognised_members(reading);
    timeout_below_session(reading);
    one_worker(reading);
    remaining_member(reading);
    dead_letter_topic(reading);
    evicting_window(reading);
    schemas_for("identity.from", reading);
    for at in reading.tables() {
        schemas_for(&joined(&at, "from"), reading);
    }
}

/// Rejects a client id for all clients where the members of the group are recognised by the client ids of dedupd.
fn recognised_members(reading: &mut ConfigReading<'_>) {
    const KEY: &str = "kafka.properties.client.id";
    if let (Some(id), Some(false)) = (reading.text(KEY), reading.valid("group.static_membership", &FLAG)) {
        let what = "requires group.static_membership: instances recognise the members of the group by their client ids, or by \
                    their static membership";
        let remedy = "leave it out, or set group.static_membership = true";
        reading.reject(KEY, Some(id), ValueFault::new(what, remedy));
    }
}

/// Rejects the sources of an id or a kind that need a schema when none is configured.
pub(super) fn schemas_for(key: &str, reading: &mut ConfigReading<'_>) {
    let is_set = |key: &str| reading.text(key).is_some_and(|text| !text.is_empty());
    let has = [is_set("schemas.registry"), is_set("schemas.key"), is_set("schemas.value")];
    for text in reading.texts(key).unwrap_or_default() {
        let name = |needed| match (needed, has) {
            (RecordField::Key, [false, false, _]) => Some("schemas.key"),
            (RecordField::Value, [false, _, false]) => Some("schemas.value"),
            _ => None,
        };
        let Some(name) = needed_schemas(text).into_iter().find_map(name) else { continue };
        let remedy = format!("set schemas.registry to the URL of the registry, or {name} to a file");
        reading.reject(key, Some(text), ValueFault::new("needs a schema", remedy));
    }
}

/// What of a record needs a schema to read a part of an id, a source or a kind.
fn needed_schemas(text: &str) -> Vec<RecordField> {
    let part: Option<IdPart> = text.parse().ok();
    let sources = part.iter().flat_map(IdPart::sources);
    sources.filter_map(IdSource::needs_schema).collect()
}

/// Rejects a policy for conflicts where nothing is compared.
pub(super) fn compared_conflicts(
    from: Option<&Vec<IdPart>>,
    compare: Option<&Option<Vec<IdPart>>>,
    policy: Option<OnConflict>,
    reading: &mut ConfigReading<'_>,
) {
    let (Some(from), Some(compare), Some(policy)) = (from, compare, policy) else { return };
    let parts = compared(from, compare.as_deref());
    if policy != OnConflict::Drop && parts.iter().all(|part| from.contains(part)) {
        let why = match compare {
            Some(_) if parts.is_empty() => "identity.compare is \"off\"",
            Some(_) => "identity.compare names only parts of the id",
            None => "the value is a part of the id",
        };
        let fault =
            ValueFault::new(format!("has no effect: {why}"), "set identity.compare, or leave the policy out");
        reading.reject("identity.on_conflict", Some(policy.as_str()), fault);
    }
}

/// Rejects contents of records on the status page, which has no authentication, unless the operator permits them.
pub(super) fn shown_values(by: Option<&[InsightSource]>, reading: &mut ConfigReading<'_>) {
    let is_permitted = reading.valid("http.show_values", &FLAG) == Some(true);
    for source in by.unwrap_or_default().iter().filter(|source| !is_permitted && !source.is_open()) {
        let what = "would show contents of records on the status page, which has no authentication";
        let fault = ValueFault::new(what, "set http.show_values = true, or give a header or partition");
        reading.reject("insight.by", Some(&source.to_string()), fault);
    }
}

/// Rejects a field whose schema only a registry has, unless an id or a comparison needs the same: a duplicate does not wait for a schema.
pub(super) fn schemas_of_others(reading: &mut ConfigReading<'_>) {
    let known: Vec<RecordField> = ["identity.from", "identity.compare"]
        .into_iter()
        .flat_map(|key| reading.texts(key).unwrap_or_default())
        .flat_map(|text| needed_schemas(text))
        .collect();
    for text in reading.texts("insight.by").unwrap_or_default() {
        let Some(field) = needed_schemas(text).pop() else { continue };
        let file = if field == RecordField::Key { "schemas.key" } else { "schemas.value" };
        if reading.text(file).is_none_or(str::is_empty) && !known.contains(&field) {
            let what = "needs a schema, and no source of identity.from or identity.compare needs the same";
            let fault = ValueFault::new(what, format!("set {file} to a file"));
            reading.reject("insight.by", Some(text), fault);
        }
    }
}

/// A user needs a password, a request has one kind of authorization, and the certificate of a client needs its key.
pub(super) fn registry_access(reading: &mut ConfigReading<'_>) {
    const CERTIFICATE: &str = "schemas.certificate_file";
    const KEY: &str = "schemas.private_key_file";
    let keys = ["schemas.username", "schemas.password_file", "schemas.token_file", CERTIFICATE, KEY];
    let set = keys.map(|key| reading.text(key).filter(|text| !text.is_empty()));
    let [username, password, token, certificate, key] = set;
    if username.is_some() && password.is_none() {
        let fault = ValueFault::new("has no password", "set schemas.password_file");
        reading.reject("schemas.username", username, fault);
    }
    if username.is_none() && password.is_some() {
        let fault = ValueFault::new("has no effect without a user", "set schemas.username");
        reading.reject("schemas.password_file", None, fault);
    }
    if username.is_some() && token.is_some() {
        let fault = ValueFault::new("cannot be combined with schemas.username", "set one of them");
        reading.reject("schemas.token_file", None, fault);
    }
    if certificate.is_some() != key.is_some() {
        let (key, other) = if key.is_some() { (KEY, CERTIFICATE) } else { (CERTIFICATE, KEY) };
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
    let default_state = || reading.text("topics.clean").map(state_of);
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
    exact: Option<Duration>,
    bloom: Option<Duration>,
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

/// The tables of `[[kinds]]` with a window.
fn deduplicated_kinds(reading: &ConfigReading<'_>) -> Vec<String> {
    let mut tables = reading.tables();
    tables.retain(|at| reading.valid(&joined(at, "dedupe"), &Maybe(FLAG)) != Some(Some(false)));
    tables
}

/// Rejects a window that evicts and has filters, which are made of sealed ids, and one without a number of slots.
fn evicting_window(reading: &mut ConfigReading<'_>) {
    const KEY: &str = "window.overflow";
    if reading.valid(KEY, &Word) != Some(Overflow::Evict) {
        return;
    }
    let span = |at: &str, key: &str| reading.valid(&joined(at, key), &Maybe(Span(SECOND..))).flatten();
    let common = span("window", "exact");
    let has_filters = |at: &str| {
        let both = span(at, "bloom").zip(span(at, "exact").or(common));
        both.is_some_and(|(bloom, exact)| bloom > exact)
    };
    if has_filters("window") || deduplicated_kinds(reading).iter().any(|at| has_filters(at)) {
        let what = "cannot be combined with a longer window.bloom, or bloom in [[kinds]]";
        let remedy = "remove bloom, or set window.overflow = \"shrink\"";
        reading.reject(KEY, Some(Overflow::Evict.as_str()), ValueFault::new(what, remedy));
    } else if !reading.is_set("window.max_ids") {
        let what = "needs window.max_ids, the number of slots of its table";
        let remedy = "set it; dedupd plan prints the slots that a window needs";
        reading.reject(KEY, Some(Overflow::Evict.as_str()), ValueFault::new(what, remedy));
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
fn timeout_below_session(reading: &mut ConfigReading<'_>) {
    const KEY: &str = "batch.transaction_timeout";
    let timeout = reading.valid(KEY, &Span(SECOND..));
    let session = reading.valid("group.session_timeout", &SESSION_TIMEOUT);
    let (Some(timeout), Some(session)) = (timeout, session) else { return };
    if timeout >= session {
        let what = format!(
            "is not below group.session_timeout = \"{}\", so a dead instance would block the next one",
            duration_text(session)
        );
        let fault = ValueFault::new(what, "lower it, or raise group.session_timeout");
        reading.reject(KEY, Some(&duration_text(timeout)), fault);
    }
}

/// Only a worker that has all partitions finds the copies in all of them.
fn one_worker(reading: &mut ConfigReading<'_>) {
    let workers: Option<usize> = reading.valid("group.workers", &WORKERS);
    let Some(workers) = workers.filter(|workers| *workers > 1) else { return };
    if reading.valid("dedupe.scope", &Word) == Some(Scope::Topic) {
        let what = "is above 1, but with dedupe.scope = \"topic\" one worker processes all partitions";
        let remedy = "set group.workers = 1; or set dedupe.scope = \"partition\": workers and instances then share the \
                      partitions, an id counts once in each of them, and copies in other partitions are forwarded";
        reading.reject("group.workers", Some(&workers.to_string()), ValueFault::new(what, remedy));
    }
}

/// Only a static member that is restarted resumes its membership, and a spare takes over only when the group is empty.
fn remaining_member(reading: &mut ConfigReading<'_>) {
    const KEY: &str = "group.on_stop";
    if reading.valid(KEY, &Word) != Some(OnStop::Remain) {
        return;
    }
    let is_static = reading.valid("group.static_membership", &FLAG);
    let what = match (reading.valid("dedupe.scope", &Word), is_static) {
        (Some(Scope::Topic), _) => {
            "is for dedupe.scope = \"partition\": in topic scope a spare could take over only after group.session_timeout"
        }
        (Some(Scope::Partition), Some(false)) => {
            "requires group.static_membership: a restarted instance could not resume its membership"
        }
        _ => return,
    };
    let fault = ValueFault::new(what, "set group.on_stop = \"leave\"");
    reading.reject(KEY, Some(OnStop::Remain.as_str()), fault);
}

/// A policy `dead_letter` requires `topics.dead_letter`.
fn dead_letter_topic(reading: &mut ConfigReading<'_>) {
    if reading.is_set("topics.dead_letter") {
        return;
    }
    let to_dead_letter = |key: &str| reading.valid(key, &Maybe(Word)) == Some(Some(OnProbable::DeadLetter));
    let kinds: Vec<_> = deduplicated_kinds(reading).iter().map(|at| joined(at, "on_probable")).collect();
    let probable = kinds.iter().map(String::as_str).chain(["window.on_probable"]);
    let mut found: Vec<&str> = probable.filter(|key| to_dead_letter(key)).collect();
    let is_missing_policy = reading.valid("identity.on_missing", &Word) == Some(OnMissing::DeadLetter);
    found.extend(is_missing_policy.then_some("identity.on_missing"));
    let is_conflict_policy = reading.valid("identity.on_conflict", &Word) == Some(OnConflict::DeadLetter);
    found.extend(is_conflict_policy.then_some("identity.on_conflict"));
    let is_poison_policy = reading.valid("state.on_poison", &Word) == Some(OnPoison::DeadLetter);
    found.extend(is_poison_policy.then_some("state.on_poison"));
    for key in found {
        let what = "requires a dead-letter topic, but topics.dead_letter is not set";
        let fault = ValueFault::new(what, "set topics.dead_letter, or choose another policy");
        reading.reject(key, Some(OnMissing::DeadLetter.as_str()), fault);
    }
}
