//! `dedupd explain`: a record of raw, the owner of its id, and what a lookup finds now.

mod asked;
mod content;

use std::fmt;

use serde::Serialize;

use super::state::{self, Standing};
use crate::app::{ExitError, Prepared, begin_log_quietly, kinds, prepare, rule, settings};
use crate::cli::{Exit, ExplainArgs};
use crate::config::{Config, Local, Scope};
use crate::dedupe::{CompareRule, Coordinates, Fields as _, Identity, IdentityRule};
use crate::kafka::{NoRecord, RawRecord, Settings, compared_parts, read_record};
use crate::pipeline::Kinds;
use crate::ports::{Failure, Record as _};
use crate::store::Binding;
use crate::units::measured_text;
use asked::{Answered, Question};
use content::{ComparedContent, described};

/// What is printed.
#[derive(Debug, Serialize)]
struct Explanation {
    record: ExplainedRecord,
    /// The sources of the id, and the fingerprint of the rule.
    rule: String,
    /// 32 hex digits; `None` when the record has no id.
    identity: Option<String>,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Where the owners were looked up.
    source: String,
    owners: Vec<ExplainedOwner>,
    verdict: String,
}

/// A record of raw.
#[derive(Debug, Serialize)]
struct ExplainedRecord {
    at: String,
    timestamp_ms: Option<i64>,
    bytes: usize,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: String,
}

/// An owner of the identity.
#[derive(Debug, Serialize)]
struct ExplainedOwner {
    at: String,
    /// Its stream time, epoch milliseconds; 0 while unknown.
    time_ms: i64,
    /// Whether the window counts it.
    counts: bool,
    /// How its content compares, in words.
    content: String,
}

/// Where an owner is.
struct OwnerFound {
    at: Coordinates,
    /// The kind of its window, if it has a name.
    kind: Option<String>,
    time_ms: i64,
    counts: bool,
}

/// What is read of a record.
struct RawContent {
    described: ExplainedRecord,
    identity: Option<Identity>,
    content: ComparedContent,
    /// Whether its kind has a window.
    has_window: bool,
    /// Whether it has the header that forces it through.
    is_forced: bool,
}

/// Prints the explanation.
pub fn command(config: &Config, args: &ExplainArgs) -> Result<Exit, ExitError> {
    begin_log_quietly();
    let prepared = prepare(config)?;
    let at = parse_place(&args.at)?;
    let explainer = Explainer {
        settings: settings(config, 0),
        rule: rule(config, prepared.hasher),
        kinds: kinds(config),
        compare: CompareRule::new(config.identity.compared()),
        prepared,
        config,
    };
    let explanation = explainer.explain(at)?;
    super::print(&explanation, args.json)?;
    Ok(if explanation.identity.is_some() { Exit::Done } else { Exit::No })
}

/// A place as it is written in the log: `3@17`.
fn parse_place(text: &str) -> Result<Coordinates, ExitError> {
    let parts = text.split_once('@').and_then(|(partition, offset)| {
        Some(Coordinates { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
    });
    let wrong = "is not the place of a record; give a partition and an offset, as in 3@17";
    parts.ok_or_else(|| ExitError::usage(format!("\"{text}\" {wrong}")))
}

struct Explainer<'a> {
    config: &'a Config,
    prepared: Prepared,
    settings: Settings,
    rule: IdentityRule,
    kinds: Kinds,
    compare: CompareRule,
}

impl Explainer<'_> {
    fn explain(&self, at: Coordinates) -> Result<Explanation, ExitError> {
        let seen = self.read(at)?.map_err(|why| self.no_record(at, &why))?;
        let sources: Vec<_> = self.config.identity.from.iter().map(ToString::to_string).collect();
        let rule = format!("{}, fingerprint {}", sources.join(" and "), self.rule.fingerprint());
        let why = self.prepared.schemas.why_missing().filter(|_| seen.identity.is_none());
        let Some(identity) = seen.identity else {
            let verdict = "the record has no id; identity.on_missing decides".to_owned();
            let (source, owners) = (String::new(), Vec::new());
            return Ok(Explanation {
                record: seen.described,
                rule,
                identity: None,
                why,
                source,
                owners,
                verdict,
            });
        };
        let (source, mut places) = self.places(at.partition, identity)?;
        // Each kind has windows of its own, and in partition scope each partition.
        let is_here = |place: &OwnerFound| {
            self.config.dedupe.scope == Scope::Topic || place.at.partition == at.partition
        };
        places.retain(|place| {
            seen.has_window
                && is_here(place)
                && place.kind.as_deref().unwrap_or_default() == seen.described.kind
        });
        let owners: Result<Vec<_>, _> = places.iter().map(|place| self.compared(&seen, at, place)).collect();
        let verdict = verdict(at, &seen, &places);
        let identity = Some(identity.to_string());
        Ok(Explanation { record: seen.described, rule, identity, why, source, owners: owners?, verdict })
    }

    fn read(&self, at: Coordinates) -> Result<Result<RawContent, NoRecord>, ExitError> {
        let failed = |failure: Failure| ExitError::new(Exit::Unreachable, failure.unretried().to_owned());
        let unread = |why| ExitError::new(Exit::Unreachable, format!("record {at}: {why}"));
        match read_record(&self.settings, at, |record| self.seen(record)).map_err(failed)? {
            Ok(seen) => seen.map(Ok).map_err(unread),
            Err(why) => Ok(Err(why)),
        }
    }

    fn no_record(&self, at: Coordinates, why: &NoRecord) -> ExitError {
        let (raw, Coordinates { partition, offset }) = (&self.settings.raw, at);
        let (exit, what) = match why {
            NoRecord::Topic => (
                Exit::StartUp,
                format!(
                    "topic {raw} does not exist at {}, or this user may not describe it; correct topics.raw or kafka.bootstrap_servers",
                    self.config.kafka.bootstrap_servers
                ),
            ),
            NoRecord::Partition(count) => (
                Exit::Usage,
                format!(
                    "topic {raw} has no partition {partition}: its partitions are 0 to {}",
                    count.saturating_sub(1)
                ),
            ),
            NoRecord::Deleted(low) => (
                Exit::No,
                format!(
                    "record {at} of topic {raw} is deleted: partition {partition} starts at offset {low}. If its id is known, dedupd \
                     state inspect --id finds the owner"
                ),
            ),
            NoRecord::Beyond(end) => (
                Exit::No,
                format!(
                    "topic {raw} has no record {at} yet: the committed records of partition {partition} end before offset {end}; \
                     correct the offset, or wait until the record is committed"
                ),
            ),
            NoRecord::Nothing => (
                Exit::No,
                format!(
                    "topic {raw} has no record at {at}: offset {offset} is a transaction marker, or its record was aborted or compacted \
                     away; give the offset of a record"
                ),
            ),
        };
        ExitError::new(exit, what)
    }

    fn seen(&self, record: &RawRecord<'_>) -> Result<RawContent, String> {
        let schemas = &self.prepared.schemas;
        let identity = schemas.identify(&self.rule, record)?;
        let kind = self.kinds.get(schemas.read(|known| self.kinds.number_of(record, known))?);
        let digest = schemas.digest(&self.compare, record)?;
        let parts =
            compared_parts(&self.config.identity.compared(), record, |part| schemas.digest(part, record));
        let described = ExplainedRecord {
            at: record.coordinates().to_string(),
            timestamp_ms: record.timestamp_ms(),
            bytes: record.size(),
            kind: kind.map(|kind| kind.name.clone()).unwrap_or_default(),
        };
        let force = self.config.identity.force_header.as_ref();
        Ok(RawContent {
            described,
            identity,
            content: ComparedContent { digest, parts, value: record.value().map(<[u8]>::to_vec) },
            has_window: kind.is_some_and(|kind| kind.window.is_some()),
            is_forced: force.is_some_and(|name| record.has_header(name)),
        })
    }

    /// The owners of an identity, from the running instance or from local state.
    fn places(&self, partition: u32, identity: Identity) -> Result<(String, Vec<OwnerFound>), ExitError> {
        let question = Question {
            config: self.config,
            rule: self.rule.fingerprint().to_string(),
            token: self.prepared.token.as_ref(),
            identity,
            partition,
        };
        let nobody = match question.ask()? {
            Answered::Instance(by, owners) => return Ok((by, owners)),
            Answered::Nobody(why) => why,
        };
        let is_ours = |binding: &Binding| self.check_binding(binding);
        let found = state::look_up(&Local::of(self.config), identity, None, is_ours).map_err(|error| {
            let why = format!("{}; the state was read because {nobody}", error.message);
            ExitError::new(error.exit, why)
        })?;
        let place = |owner: &state::FoundOwner| OwnerFound {
            at: Coordinates { partition: owner.partition, offset: owner.offset },
            kind: owner.kind.clone(),
            time_ms: owner.time_ms,
            counts: owner.standing == Standing::Exact,
        };
        let dir = self.config.state.dir.display();
        let source = format!("the local state in {dir}, because {nobody}");
        Ok((source, found.found.iter().map(place).collect()))
    }

    /// Fails if local state is that of another raw topic or group.
    fn check_binding(&self, binding: &Binding) -> Result<(), ExitError> {
        let (raw, group) = (self.config.topics.raw.as_str(), &self.config.group.id);
        if binding.raw == raw && binding.group == *group {
            return Ok(());
        }
        Err(ExitError::new(
            Exit::State,
            format!(
                "the local state in {} is of topic {} and group {}, and the record of topic {raw} and group {group}; give the state.dir \
                 of that group",
                self.config.state.dir.display(),
                binding.raw,
                binding.group
            ),
        ))
    }

    fn compared(
        &self,
        seen: &RawContent,
        at: Coordinates,
        place: &OwnerFound,
    ) -> Result<ExplainedOwner, ExitError> {
        let content = if place.at == at {
            "this record".to_owned()
        } else {
            match self.read(place.at)? {
                Err(_) => "no longer in raw".to_owned(),
                Ok(owner) => described(&self.config.identity.compared(), &seen.content, &owner.content),
            }
        };
        let OwnerFound { at, time_ms, counts, .. } = *place;
        Ok(ExplainedOwner { at: at.to_string(), time_ms, counts, content })
    }
}

/// What a lookup finds for the record at this place.
fn verdict(at: Coordinates, seen: &RawContent, places: &[OwnerFound]) -> String {
    if !seen.has_window {
        return "forwarded: its kind has no window".to_owned();
    }
    if seen.is_forced {
        return "forwarded whatever its id: it has the header identity.force_header".to_owned();
    }
    let counting = places.iter().filter(|place| place.counts);
    let others: Vec<_> = counting.clone().filter(|place| place.at != at).collect();
    match (others.first(), counting.clone().any(|place| place.at == at)) {
        (Some(other), _) => format!("a duplicate of {}", other.at),
        (None, true) => "the owner of its id: it was forwarded, and would be again after an abort".to_owned(),
        (None, false) => "new: the window has no owner of its id".to_owned(),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedRecord { at, timestamp_ms, bytes, kind } = &self.record;
        let written = timestamp_ms
            .map_or_else(|| "without a timestamp".to_owned(), |ms| format!("written at {}", state::utc(ms)));
        writeln!(f, "record    {at}, {written}, {bytes} bytes of key and value")?;
        if !kind.is_empty() {
            writeln!(f, "kind      {kind}")?;
        }
        writeln!(f, "rule      {}", self.rule)?;
        match (&self.identity, &self.why) {
            (Some(identity), _) => writeln!(f, "identity  {identity}")?,
            (None, why) => writeln!(f, "identity  none: {}", why.as_deref().unwrap_or("it has no id"))?,
        }
        for ExplainedOwner { at, time_ms, counts, content } in &self.owners {
            let age = timestamp_ms.filter(|_| *time_ms > 0).map(|ms| age(ms, *time_ms)).unwrap_or_default();
            let expired = if *counts { "" } else { ", not counted by the window any more" };
            writeln!(f, "owner     {at}{age}, {content}{expired}")?;
        }
        if self.identity.is_some() {
            writeln!(f, "looked up in {}", self.source)?;
        }
        writeln!(
            f,
            "verdict   {}; today's, and not that of the time when the record was processed",
            self.verdict
        )
    }
}

/// How long an owner arrived before a record, or after it.
fn age(record_ms: i64, owner_ms: i64) -> String {
    let apart = std::time::Duration::from_millis(record_ms.abs_diff(owner_ms));
    let how = if owner_ms <= record_ms { "before" } else { "after" };
    format!(", {} {how}", measured_text(apart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_partition_and_an_offset() {
        assert_eq!(parse_place("3@17").ok(), Some(Coordinates { partition: 3, offset: 17 }));
        for text in ["", "3", "3@", "@17", "3@17@1", "-1@2", "3@x", "4294967296@1"] {
            assert!(parse_place(text).is_err(), "{text}");
        }
    }
}
