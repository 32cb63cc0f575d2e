//! Derives the settings of each part from the configuration.

use std::path::Path;
use std::time::Duration;

use super::ExitError;
use crate::config::{self, Config, HashChoice, OnConflict, OnMissing, Scope};
use crate::dedupe::{
    BloomPart, CompareRule, FilterBits, FilterPart, Fingerprint, Hasher, IdPart, IdentityRule, KindId,
    KindRule, SMALLEST_SLICE, TimeSource, WindowLimits,
};
use crate::http::Token;
use crate::kafka::{ACTIVE_ID, Settings, Topology};
use crate::pipeline::{
    CountedBy, EVIDENCE_RECORDS, ITERATION_TIME, Kind, Kinds, Limits, LoadPart, PartitionCounts,
    TransactionSize, WorkerOptions, block_ids, most_partitions, most_sections,
};
use crate::store::{Binding, Joining};

/// The longest time for which any kind stores ids.
#[must_use]
pub fn window_of(config: &Config) -> Duration {
    windows(config).map(|window| window.exact.max(window.bloom)).max().unwrap_or_default()
}

/// The windows of all kinds.
pub(super) fn windows(config: &Config) -> impl Iterator<Item = &config::WindowConfig> {
    std::iter::once(&config.window).chain(config.kinds.iter().filter_map(|kind| kind.window.as_ref()))
}

/// The kinds of records, in the types of the pipeline.
pub(crate) fn kinds(config: &Config) -> Kinds {
    let max_ids = config.window.max_ids;
    let named = config.kinds.iter().map(|kind| Kind {
        name: kind.name.clone(),
        id: KindId::named(&kind.name),
        rule: Some(kind_rule(kind)),
        window: kind.window.as_ref().map(|window| window_limits(window, max_ids)),
        on_probable: kind.window.as_ref().map_or(config.window.on_probable, |window| window.on_probable),
    });
    Kinds::new(window_limits(&config.window, max_ids), config.window.on_probable, named)
}

fn kind_rule(kind: &config::KindConfig) -> KindRule {
    KindRule::new(kind.from.clone(), kind.values.iter().cloned())
}

/// Within which time the store may join the owners of small runs.
pub(super) fn joining(config: &Config) -> Joining {
    let of = |window: &config::WindowConfig| window.exact.max(window.bloom) / 100;
    let named =
        config.kinds.iter().filter_map(|kind| Some((KindId::named(&kind.name), of(kind.window.as_ref()?))));
    Joining::new(of(&config.window), named)
}

/// The Kafka settings of worker number `worker`.
#[must_use]
pub fn settings(config: &Config, worker: usize) -> Settings {
    let group = &config.group;
    let client_id = format!("{}.{}.{worker}", group.id, group.instance);
    Settings {
        bootstrap_servers: config.kafka.bootstrap_servers.clone(),
        properties: config.kafka.properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        raw: config.topics.raw.as_str().to_owned(),
        clean: config.topics.clean.as_str().to_owned(),
        state: config.topics.state.as_str().to_owned(),
        dead_letter: config.topics.dead_letter.as_ref().map(|t| t.as_str().to_owned()),
        duplicates: config.topics.duplicates.as_ref().map(|t| t.as_str().to_owned()),
        group: group.id.clone(),
        // In topic scope there is one active worker, whose producer fences the one before it, wherever that runs.
        transactional_id: match config.dedupe.scope {
            Scope::Topic => format!("{}.{ACTIVE_ID}", group.id),
            Scope::Partition => client_id.clone(),
        },
        client_id,
        instance: group.static_membership.then(|| format!("{}.{worker}", group.instance)),
        session_timeout: group.session_timeout,
        transaction_timeout: config.batch.transaction_timeout,
        interval: config.batch.interval,
        largest_batch: None,
        partitions: 0,
    }
}

/// The options of worker number `worker`.
pub(super) fn options(
    config: &Config,
    hasher: Hasher,
    topology: &Topology,
    partition_counts: &PartitionCounts,
    worker: usize,
) -> WorkerOptions {
    let [raw_id, _, state_id] = topology.topic_ids.clone();
    let writer = settings(config, worker).transactional_id;
    // All workers together read local state with every core.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    WorkerOptions {
        raw: config.topics.raw.as_str().to_owned(),
        raw_id,
        state_id,
        state: config.topics.state.as_str().to_owned(),
        state_retention: topology.state_retention,
        partition_counts: partition_counts.clone(),
        raw_partitions: u32::try_from(topology.partitions).unwrap_or(u32::MAX),
        group: config.group.id.clone(),
        writer: writer.clone(),
        hash: hasher.kind(),
        accept_change: config.identity.accept_change,
        rule: rule(config, hasher),
        compare: CompareRule::new(config.identity.compared()),
        is_compare_set: config.identity.compare.is_some(),
        counted_by: config.insight.by.iter().map(CountedBy::new).collect(),
        kinds: kinds(config),
        limits: limits(config),
        mode: config.dedupe.mode,
        scope: config.dedupe.scope,
        keep_duplicates: config.topics.duplicates.is_some(),
        force_header: config.identity.force_header.clone(),
        on_missing: config.identity.on_missing,
        on_conflict: config.identity.on_conflict,
        on_poison: config.state.on_poison,
        poison_retry: config.state.poison_retry,
        start: config.group.start,
        on_rewind: config.group.on_rewind,
        on_gap: config.group.on_gap,
        on_stop: config.group.on_stop,
        #[cfg(feature = "failpoints")]
        disabled: disabled_safeguard(),
        transaction_limit: TransactionSize {
            records: config.batch.max_records.min(limits(config).records_by_disk()),
            bytes: usize::try_from(config.batch.max_bytes).unwrap_or(usize::MAX),
            partitions: most_partitions(&config.group.id, config.topics.raw.as_str(), &writer)
                .min(most_sections(topology.largest_state, config.kinds.len() + 1)),
        },
        interval: config.batch.interval,
        transaction_timeout: config.batch.transaction_timeout,
        block_ids: block_ids(topology.largest_state),
        evidence_records: EVIDENCE_RECORDS,
        load_part: LoadPart { threads: (cores / config.group.workers.max(1)).max(1), ..LoadPart::default() },
        iteration_time: ITERATION_TIME,
    }
}

/// The limits of a window.
pub(crate) fn window_limits(window: &config::WindowConfig, max_ids: Option<u64>) -> WindowLimits {
    WindowLimits {
        exact: window.exact,
        max_ids: max_ids.unwrap_or(Limits::UNLIMITED_IDS),
        time: match window.time {
            config::WindowTime::Record => TimeSource::Record,
            config::WindowTime::Arrival => TimeSource::Arrival,
        },
        bloom: filters(window),
    }
}

/// Fewest identities of a slice; a test on a real broker makes slices of few.
fn smallest_slice() -> u64 {
    #[cfg(feature = "failpoints")]
    if let Some(ids) = std::env::var("DEDUPD_SMALLEST_SLICE").ok().and_then(|ids| ids.parse().ok()) {
        return ids;
    }
    SMALLEST_SLICE
}

/// The part of the windows that is in filters only: the largest of all kinds.
fn filter_part(config: &Config) -> FilterPart {
    let parts = windows(config).filter_map(|window| {
        let bloom = filters(window)?;
        Some(FilterPart::new(bloom.bits, window.exact.as_secs_f64() / bloom.length.as_secs_f64()))
    });
    parts.fold(FilterPart::NONE, |largest, part| FilterPart {
        bits: largest.bits.max(part.bits),
        percent: largest.percent.max(part.percent),
    })
}

/// The limits that all workers share.
pub(super) fn limits(config: &Config) -> Limits {
    Limits {
        workers: config.group.workers as u64,
        max_ids: config.window.max_ids.unwrap_or(Limits::UNLIMITED_IDS),
        when_full: config.window.overflow,
        max_memory: config.window.max_memory,
        max_disk: config.state.max_disk,
        // A table of fixed size needs all owners in the store.
        smallest_slice: (config.window.overflow == config::Overflow::Shrink).then(smallest_slice),
        filtered: filter_part(config),
    }
}

/// The filters beyond the exact window; `None` when `window.bloom` is not longer than `window.exact`.
pub(super) fn filters(window: &config::WindowConfig) -> Option<BloomPart> {
    let bits = FilterBits::at_rate(window.false_positive_rate);
    (window.bloom > window.exact).then_some(BloomPart { length: window.bloom, bits })
}

/// The safeguard that a test on a real broker disables, to prove that it is needed.
#[cfg(feature = "failpoints")]
fn disabled_safeguard() -> Option<crate::pipeline::Safeguard> {
    use crate::pipeline::Safeguard;

    match std::env::var("DEDUPD_WITHOUT").as_deref() {
        Ok("markers") => Some(Safeguard::Markers),
        Ok("agreement") => Some(Safeguard::Agreement),
        Ok("resignation") => Some(Safeguard::Resignation),
        _ => None,
    }
}

/// The rule that turns a record, or the text of an id, into an identity.
pub(crate) fn rule(config: &Config, hasher: Hasher) -> IdentityRule {
    let is_by_source = config.identity.on_missing == OnMissing::Source;
    let rule = IdentityRule::new(config.identity.from.clone(), hasher).framed(config.schemas.frame);
    rule.by_source(is_by_source)
}

/// Whether a record can wait for a schema without limit: the schema determines its id or its kind, or the policy for conflicts depends on its content.
pub(super) fn decides_with_schemas(config: &Config) -> bool {
    ids_need_schemas(config)
        || config.kinds.iter().any(|kind| kind.from.needs_schema().is_some())
        || config.identity.on_conflict != OnConflict::Drop
}

/// Whether a schema determines the id of a record.
pub(super) fn ids_need_schemas(config: &Config) -> bool {
    config.identity.from.iter().flat_map(IdPart::sources).any(|source| source.needs_schema().is_some())
}

/// The configured hash, with its secret key read from the file.
pub(crate) fn hasher(hash: &HashChoice) -> Result<Hasher, ExitError> {
    let HashChoice::SipHash { key_file } = hash else { return Ok(Hasher::Xxh3) };
    let unusable = |what: String| {
        ExitError::usage(format!(
            "identity.key_file = {}: {what}; write 32 hex digits, as from: openssl rand -hex 16",
            key_file.display()
        ))
    };
    let text = config::read_small_text(key_file).map_err(|e| unusable(format!("cannot be read: {e}")))?;
    let text = text.trim();
    let key = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    key.map(|key| Hasher::SipHash { key: key.to_be_bytes() })
        .ok_or_else(|| unusable("does not contain a 128-bit key".to_owned()))
}

/// The bearer token of the admin API, read from `http.token_file`.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<Token>, ExitError> {
    let Some(path) = file else { return Ok(None) };
    let unusable = |what: String| {
        let remedy = "write at least 16 characters, as from: openssl rand -hex 16";
        ExitError::usage(format!("http.token_file = {}: {what}; {remedy}", path.display()))
    };
    let text = config::read_small_text(path).map_err(|e| unusable(format!("cannot be read: {e}")))?;
    Token::new(text.trim()).map(Some).ok_or_else(|| unusable("the token is too short".to_owned()))
}

/// The binding of the local store: what its contents belong to.
pub(super) fn binding(config: &Config, hasher: &Hasher, topology: &Topology) -> Binding {
    let of_all = rule(config, *hasher).fingerprint();
    let [raw_id, clean_id, state_id] = topology.topic_ids.clone();
    Binding {
        cluster_id: topology.cluster_id.clone().unwrap_or_default(),
        raw: config.topics.raw.as_str().to_owned(),
        clean: config.topics.clean.as_str().to_owned(),
        state: config.topics.state.as_str().to_owned(),
        group: config.group.id.clone(),
        partitions: u32::try_from(topology.partitions).unwrap_or(u32::MAX),
        hash: hasher.kind(),
        raw_id,
        clean_id,
        state_id,
        topic_scope: config.dedupe.scope == Scope::Topic,
        accepts_change: config.identity.accept_change == Some(kinds(config).fingerprint(of_all)),
        ..bound_rules(&config.kinds, of_all)
    }
}

/// The part of a binding that names the kinds with windows and their identity rules. `of_all` is the rule for all records.
pub(crate) fn bound_rules(kinds: &[config::KindConfig], of_all: Fingerprint) -> Binding {
    let mut kept: Vec<_> = kinds.iter().filter(|kind| kind.window.is_some()).collect();
    kept.sort_unstable_by_key(|kind| &kind.name);
    let named = kept.iter().map(|kind| kind_rule(kind).fingerprint(of_all));
    Binding {
        kinds: kept.iter().map(|kind| kind.name.clone()).collect(),
        rules: std::iter::once(of_all).chain(named).collect(),
        ..Binding::default()
    }
}
