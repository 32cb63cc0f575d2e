//! `dedupd audit`: audits the guarantee of exactly this configuration.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dedupd_audit::{
    self as audit, AuditError, FetchSchema, Framing, MissingId, Options, RecordKind, Report, SchemaName,
    SchemaSources, progress_bar, run,
};

use crate::app::ExitError;
use crate::cli::{AuditArgs, Exit};
use crate::clock;
use crate::config::{
    self, Config, IdPart, KindConfig, OnConflict, OnMissing, OnPoison, OnProbable, Overflow, SchemasConfig,
    Scope, WindowConfig, WindowTime, duration_text,
};
use crate::dedupe::{Frame, SchemaId};
use crate::kafka::connection::{self, NoConnection, attach_tokens};
use crate::locked::Locked as _;
use crate::schemas::{self, Registry, SchemaOrigin, SchemaText};

/// Reads both topics and reports the differences. The audit parses the id sources itself, so it receives their texts.
pub fn command(args: &AuditArgs) -> Result<Report, ExitError> {
    let (config, id) = config::load_with_texts(args.config.as_deref(), args.overrides(), "identity.from")?;
    let unregistered = Unregistered::default();
    let options = options(args, &config, id, &unregistered)?;
    let result = run(&options, &progress_bar());
    let mut report = result.map_err(|error| ended(&error, &options))?;
    let missing = unregistered.locked();
    report.notes.extend(schemas::unregistered(config.schemas.holder(), missing.iter().copied()));
    Ok(report)
}

/// The schemas that the registry does not have.
type Unregistered = Arc<Mutex<BTreeSet<SchemaId>>>;

fn options(
    args: &AuditArgs,
    config: &Config,
    id: Vec<String>,
    unregistered: &Unregistered,
) -> Result<Options, ExitError> {
    let range = args.range(clock::wall_ms()).map_err(ExitError::usage)?;
    let sources = args.source_topics(config.topics.clean.as_str()).map_err(ExitError::usage)?;
    let id_parts = id.len();
    Ok(Options {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: config.kafka.properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        on_client: attach_tokens,
        raw: sources.map_or_else(|| vec![config.topics.raw.as_str().to_owned()], ToOwned::to_owned),
        clean: config.topics.clean.as_str().to_owned(),
        id,
        schemas: schema_sources(&config.schemas, unregistered).map_err(ExitError::usage)?,
        compare: compared(args, config).map_err(ExitError::usage)?,
        require_equal: args.require_equal,
        kinds: config.kinds.iter().map(record_kind).collect(),
        forgotten: forgotten(args, id_parts).map_err(ExitError::usage)?,
        missing_id: match config.identity.on_missing {
            OnMissing::Forward => MissingId::Forwarded,
            OnMissing::Source => MissingId::Identified,
            OnMissing::Drop | OnMissing::DeadLetter | OnMissing::Stop => MissingId::Withheld,
        },
        force_header: config.identity.force_header.clone(),
        scope: match (sources, config.dedupe.scope) {
            (Some(_), _) => audit::Scope::Topics,
            (None, Scope::Topic) => audit::Scope::Topic,
            (None, Scope::Partition) => audit::Scope::Partition,
        },
        window: Some(shortest_window(config)),
        longest_window: Some(longest_window(config)),
        range,
        allow_gone: args.allow_gone,
        samples: args.samples,
        memory: args.memory,
        temp_dir: args.temp_dir.clone(),
        notes: notes(config),
    })
}

/// The sources of what is compared, as texts.
fn compared(args: &AuditArgs, config: &Config) -> Result<Vec<String>, String> {
    let sources = config.identity.compared();
    if args.require_equal && sources.is_empty() {
        return Err(
            "--require-equal has nothing to compare: identity.compare is \"off\", or the value is a part of the id; set \
             identity.compare, or leave the flag out"
                .to_owned(),
        );
    }
    Ok(sources.iter().map(ToString::to_string).collect())
}

fn record_kind(kind: &KindConfig) -> RecordKind {
    let KindConfig { from, values, window, .. } = kind;
    let from = IdPart::from(from.clone()).to_string();
    RecordKind { from, values: values.clone(), is_deduplicated: window.is_some() }
}

/// The parts of each id in the file of forgotten ids.
fn forgotten(args: &AuditArgs, id_parts: usize) -> Result<Vec<Vec<String>>, String> {
    let Some(path) = &args.forgotten else { return Ok(Vec::new()) };
    let unusable = |why: String| format!("--forgotten {}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    forgotten_ids(&text, id_parts).map_err(unusable)
}

/// One id per line: an array of the texts of its parts, which in a log in JSON is a text; or the text of an id of one part.
fn forgotten_ids(text: &str, id_parts: usize) -> Result<Vec<Vec<String>>, String> {
    let array = |line: &str| {
        let inner = serde_json::from_str::<String>(line);
        serde_json::from_str::<Vec<String>>(inner.as_deref().unwrap_or(line)).ok()
    };
    let parts = |(number, line): (usize, &str)| match array(line) {
        Some(texts) if texts.len() == id_parts => Ok(texts),
        None if id_parts == 1 => Ok(vec![line.to_owned()]),
        _ => {
            let number = number + 1;
            Err(format!("line {number} is not a JSON array with {id_parts} text(s), as in [\"a\", \"b\"]"))
        }
    };
    text.lines().enumerate().filter(|(_, line)| !line.is_empty()).map(parts).collect()
}

/// Where the audit gets schemas from. It decodes with them itself, and reads files itself.
fn schema_sources(config: &SchemasConfig, unregistered: &Unregistered) -> Result<SchemaSources, String> {
    let (unregistered, has_ids) = (Arc::clone(unregistered), SchemaOrigin::open(config)?.is_some());
    let registry = Registry::open(config)?;
    let fetch = move |name| {
        let id = match name {
            SchemaName::Id(id) => SchemaId::Number(id),
            SchemaName::Guid(guid) => SchemaId::Guid(guid),
            SchemaName::Global(id) => SchemaId::Global(id),
            SchemaName::Content(id) => SchemaId::Content(id),
            SchemaName::Fingerprint(fingerprint) => SchemaId::Fingerprint(fingerprint),
        };
        match registry.as_ref().map(|registry| registry.schema(id)) {
            Some(Ok(SchemaText { format, text, references })) => {
                Ok(Some(audit::SchemaText { format, text, references }))
            }
            Some(Err(failed)) if !failed.is_unregistered => Err(failed.what),
            // The audit has searched the files before.
            Some(Err(_)) | None => {
                unregistered.locked().insert(id);
                Ok(None)
            }
        }
    };
    let registry = has_ids.then(|| -> FetchSchema { Arc::new(fetch) });
    let framing = match config.frame {
        Frame::Confluent => Framing::Confluent,
        Frame::Glue => Framing::Glue,
        Frame::Apicurio => Framing::ApicurioGlobal,
        Frame::ApicurioContent => Framing::ApicurioContent,
        Frame::SingleObject => Framing::SingleObject,
    };
    Ok(SchemaSources { framing, key: config.key.clone(), value: config.value.clone(), registry })
}

/// The end of the command after an error. A failed connection has the same explanation as in the other commands.
fn ended(error: &AuditError, options: &Options) -> ExitError {
    let exit = match error {
        AuditError::Unreachable { servers, events, .. }
        | AuditError::NotConnected { servers, events, .. } => {
            let problem = connection::explanation(events, servers, &options.properties);
            if let Some(problem) = problem {
                return NoConnection::Explained { servers: servers.clone(), problem }.into();
            }
            Exit::Unreachable
        }
        AuditError::Spill { .. } | AuditError::NoDirectory { .. } | AuditError::NoRoom { .. } => Exit::State,
        AuditError::Settings(_) => Exit::Usage,
        AuditError::MissingTopic { .. } | AuditError::Refused { .. } => Exit::StartUp,
        _ => Exit::Operator,
    };
    ExitError::new(exit, error.to_string())
}

/// The time within which no id occurs twice in the clean topic, for records of any kind that is de-duplicated.
fn shortest_window(config: &Config) -> Duration {
    let kinds = config.kinds.iter().filter_map(|kind| kind.window.as_ref().map(certain));
    kinds.fold(certain(&config.window), Duration::min)
}

/// The time within which no id occurs twice.
fn certain(window: &WindowConfig) -> Duration {
    match window.on_probable {
        // A record that only a filter reports as seen is forwarded again.
        OnProbable::Forward => window.exact,
        OnProbable::Drop | OnProbable::DeadLetter => window.bloom.max(window.exact),
    }
}

/// The longest time that an id of any kind is kept, without the tolerances that the audit adds itself.
fn longest_window(config: &Config) -> Duration {
    // A filter without owners expires as a whole. It can have the ids of up to six slices, of which a window has 24.
    let kept = |window: &WindowConfig| {
        if window.bloom > window.exact { window.bloom + window.bloom / 2 } else { window.exact }
    };
    let kinds = config.kinds.iter().filter_map(|kind| kind.window.as_ref().map(kept));
    kinds.fold(kept(&config.window), Duration::max)
}

/// Intended effects of this configuration that the topics alone do not distinguish from errors.
fn notes(config: &Config) -> Vec<String> {
    let window = &config.window;
    let filters_drop = window.bloom > window.exact && window.on_probable != OnProbable::Forward;
    let notes = [
        (
            filters_drop,
            format!(
                "beyond the exact window, a false positive drops a new record at a rate of {:e}; it counts as lost",
                window.false_positive_rate
            ),
        ),
        (
            config.kinds.iter().filter_map(|kind| kind.window.as_ref()).any(|it| certain(it) != certain(window)),
            format!(
                "[[kinds]] have windows of different lengths: a record that repeats an id of its kind counts as duplicated \
                 within the shortest of them, {}, and is not evaluated beyond it",
                duration_text(shortest_window(config))
            ),
        ),
        (
            window.overflow == Overflow::Evict,
            "window.overflow is \"evict\": a duplicate of an evicted id is forwarded, and counts as duplicated"
                .to_owned(),
        ),
        (
            window.time == WindowTime::Arrival,
            "window.time is \"arrival\", but the topics contain no arrival times: the audit uses timestamps"
                .to_owned(),
        ),
        (
            config.identity.on_conflict == OnConflict::DeadLetter,
            "identity.on_conflict is \"dead_letter\": dropped records that are not equal are in the dead-letter topic, which is \
             not read"
                .to_owned(),
        ),
        (
            config.state.on_poison != OnPoison::Stop,
            "state.on_poison is not \"stop\": a record that the broker rejected counts as lost".to_owned(),
        ),
        (
            matches!(config.identity.on_missing, OnMissing::Drop | OnMissing::DeadLetter),
            "identity.on_missing withholds records without an id: those in the clean topic count as phantom"
                .to_owned(),
        ),
    ];
    notes.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_ids_are_read_as_the_log_has_them() {
        let one = |text| forgotten_ids(text, 1).map(|ids| ids.concat());
        assert_eq!(one("a\n\n[\"b\\n\"]\n\"[\\\"c\\\"]\"\n[d").unwrap(), ["a", "b\n", "c", "[d"]);
        assert!(one("[\"a\",\"b\"]").unwrap_err().contains("line 1"), "an id of two parts");
        assert_eq!(forgotten_ids("[\"a\",\"\"]", 2).unwrap(), [["a", ""]]);
        assert!(forgotten_ids("[\"a\",\"b\"]\na", 2).unwrap_err().contains("line 2"));
    }
}
