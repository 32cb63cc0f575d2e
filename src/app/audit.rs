//! `dedupd audit`: exactly what the configuration promises.

use std::time::Duration;

use super::Ended;
use crate::audit::{self, AuditError, MissingId, Options, Report};
use crate::cli::{AuditArgs, Exit};
use crate::clock;
use crate::config::{Config, OnMissing, OnPoison, OnProbable, Overflow, Window, WindowTime, duration_text};

/// Reads both topics and tells what is wrong.
pub fn command(args: &AuditArgs, config: &Config) -> Result<Report, Ended> {
    let range = args.range(clock::wall_ms()).map_err(|wrong| Ended::new(Exit::Usage, wrong))?;
    let options = Options {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: config.kafka.properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        raw: config.topics.raw.as_str().to_owned(),
        clean: config.topics.clean.as_str().to_owned(),
        id: config.identity.from.clone(),
        missing_id: match config.identity.on_missing {
            OnMissing::Forward => MissingId::Forwarded,
            OnMissing::Drop | OnMissing::DeadLetter | OnMissing::Stop => MissingId::Withheld,
        },
        force_header: config.identity.force_header.clone(),
        window: Some(shortest(config)),
        range,
        allow_gone: args.allow_gone(),
        samples: args.samples(),
        memory: args.memory(),
        temp_dir: args.temp_dir().map(ToOwned::to_owned),
        notes: notes(config),
    };
    audit::run(&options, &audit::progress_bar()).map_err(|error: AuditError| {
        let exit = match error {
            AuditError::Spill { .. } | AuditError::NoRoom { .. } => Exit::State,
            AuditError::Settings(_) => Exit::Usage,
            _ => Exit::Operator,
        };
        Ended::new(exit, error.to_string())
    })
}

/// For how long no id comes twice, whatever the kind of its record.
fn shortest(config: &Config) -> Duration {
    let kept = |window: &Window| match window.on_probable {
        // What a filter has seen goes to clean once more.
        OnProbable::Forward => window.exact,
        OnProbable::Drop | OnProbable::DeadLetter => window.bloom.max(window.exact),
    };
    let kinds = config.kinds.iter().map(|kind| kind.window.as_ref().map_or(Duration::ZERO, kept));
    kinds.fold(kept(&config.window), Duration::min)
}

/// What this configuration lets happen on purpose, and topics alone cannot tell from an error.
fn notes(config: &Config) -> Vec<String> {
    let window = &config.window;
    let filters_drop = window.bloom > window.exact && window.on_probable != OnProbable::Forward;
    let told = [
        (
            filters_drop,
            format!(
                "beyond the exact window a new record may be taken for a copy, at a rate of {:e}; it then counts as lost",
                window.false_positive_rate
            ),
        ),
        (
            !config.kinds.is_empty(),
            format!(
                "[[kinds]] have windows of their own, which the audit does not tell apart: a copy counts as duplicated \
                 within the shortest of them, {}, and one of another kind too",
                duration_text(shortest(config))
            ),
        ),
        (
            window.overflow == Overflow::Evict,
            "window.overflow is \"evict\": a copy of an evicted id is forwarded, and counts as duplicated"
                .to_owned(),
        ),
        (
            window.time == WindowTime::Arrival,
            "window.time is \"arrival\", which the topics do not show: ages are reckoned by timestamps"
                .to_owned(),
        ),
        (
            config.state.on_poison != OnPoison::Stop,
            "state.on_poison is not \"stop\": a record that the broker refused counts as lost".to_owned(),
        ),
        (
            matches!(config.identity.on_missing, OnMissing::Drop | OnMissing::DeadLetter),
            "identity.on_missing withholds records without an id: in clean, they count as phantom".to_owned(),
        ),
    ];
    told.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note).collect()
}
