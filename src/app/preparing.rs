//! What a start needs before its first write. `run` goes through it, and `dedupd check` does the same and writes nothing, so what ends
//! one of them ends the other, with the same message.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;

use super::assembly::{self, settings, window_of};
use super::{ExitError, hasher};
use crate::cli::Exit;
use crate::config::Config;
use crate::dedupe::{Hasher, IdPart, IdSource, RecordField};
use crate::http::Token;
use crate::kafka::{self, Checks, Closing, Create, Forecast, Respelled, SampleLimits, SampleRule, Wanted};
use crate::pipeline::{self, Fatal, PartitionCounts, StartLogs};
use crate::ports::{Failure, Remedy};
use crate::schemas::BlockingSchemas;
use crate::store::Lock;

/// What `check` samples at most: the newest records of raw, and the time for reading them.
const CHECK_SAMPLE: SampleLimits = SampleLimits { records: 100_000, time: Duration::from_secs(5) };
/// The id of a state topic that a start is about to create.
const ID_OF_NEW: &str = "not known before a start creates it";

/// What the files contain that the configuration names.
pub(crate) struct Prepared {
    pub token: Option<Token>,
    pub hasher: Hasher,
    pub schemas: BlockingSchemas,
}

/// Reads the files that the configuration names. The error has a line for each that cannot be used.
pub(crate) fn prepare(config: &Config) -> Result<Prepared, ExitError> {
    let schemas = BlockingSchemas::open(&config.schemas).map_err(ExitError::usage);
    match (assembly::token(config.http.token_file.as_deref()), hasher(&config.identity.hash), schemas) {
        (Ok(token), Ok(hasher), Ok(schemas)) => Ok(Prepared { token, hasher, schemas }),
        (token, hasher, schemas) => {
            let problems = [token.err(), hasher.err(), schemas.err()].into_iter().flatten();
            let lines: Vec<_> = problems.map(|problem| problem.message).collect();
            Err(ExitError::usage(lines.join("\n")))
        }
    }
}

/// What the topics have to be. `create` is what happens to missing ones, if `topics.create` is set.
pub(super) fn wanted(config: &Config, create: Create) -> Wanted {
    let is_of_key = |source: &IdSource| {
        matches!(source, IdSource::Key | IdSource::Document { field: RecordField::Key, .. })
    };
    Wanted {
        create: if config.topics.create { create } else { Create::Never },
        window: window_of(config),
        key_is_id: config.identity.from.iter().flat_map(IdPart::sources).all(is_of_key),
    }
}

/// Fails when this process could not use `state.dir` or `http.listen`. Returns the process that uses them, if there is one: then
/// an instance of this name probably runs.
pub(crate) fn check_host(config: &Config) -> Result<Option<String>, ExitError> {
    let holder = Lock::probe(&config.state.dir);
    if !matches!(holder, Ok(Some(_))) {
        let address = config.http.listen;
        check_address(address).map_err(|error| cannot_bind(address, &error))?;
    }
    Ok(holder?)
}

/// The socket does not listen, so a start in the same moment can bind the address.
fn check_address(address: SocketAddr) -> std::io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// The end of a start that cannot bind `http.listen`. It is no [`Exit::Usage`], after which the systemd unit does not restart: the
/// former process may still have the port, or the machine receives the address later.
pub(super) fn cannot_bind(address: SocketAddr, error: &std::io::Error) -> ExitError {
    ExitError::failed(format!(
        "http.listen = {address}: the address cannot be bound: {error}; choose an address of this host and a free port"
    ))
}

/// Checks the live topics. Those that a start would create are validated by the brokers.
pub fn check(config: &Config) -> Result<Checks, ExitError> {
    Ok(kafka::check(&settings(config, 0), wanted(config, Create::Validate), &Closing::default())?)
}

/// What a sample of raw shows about `dedupe.scope`, in one line, and warnings. The error is that none of its records has an id, or that no
/// broker answers. A topic that cannot be sampled for another reason is no failed check.
pub(crate) fn scope_advice(config: &Config, prepared: &Prepared) -> Result<(String, Vec<String>), ExitError> {
    let Prepared { hasher, schemas, .. } = prepared;
    let rule = SampleRule {
        rule: assembly::rule(config, *hasher),
        identify: &|rule, record| schemas.identify(rule, record),
        digest: &|compare, record| schemas.digest(compare, record),
        force_header: config.identity.force_header.as_deref(),
        compare: config.identity.compared(),
    };
    let mut warnings = Vec::new();
    let advice = match kafka::sample_ids(&settings(config, 0), CHECK_SAMPLE, &rule) {
        Ok(sample) => {
            let needs_schemas = assembly::ids_need_schemas(config);
            let setting =
                if needs_schemas { "identity.from or the section schemas" } else { "identity.from" };
            let few_ids = sample.few_ids(schemas.why_missing(), setting);
            match few_ids {
                Some(what) if sample.with_id == 0 => return Err(ExitError::new(Exit::StartUp, what)),
                few_ids => warnings.extend(
                    few_ids
                        .into_iter()
                        .chain(sample.respelled.iter().map(Respelled::warning))
                        .chain(sample.content_warning()),
                ),
            }
            sample.advice(Some(config.dedupe.scope))
        }
        Err(failed) => {
            check_read(&failed, "whether the records of raw have an id")?;
            warnings.push(format!("raw was not sampled: {}", failed.unretried()));
            "raw was not sampled, so it is not known which dedupe.scope is needed".to_owned()
        }
    };
    warnings.extend(schemas.note());
    Ok((advice, warnings))
}

/// Fails when something was not read that may end a start, because a broker did not answer. `what` names it.
pub(crate) fn check_read(failed: &Failure, what: &str) -> Result<(), ExitError> {
    if failed.remedy != Remedy::Retry {
        return Ok(());
    }
    let why = failed.unretried();
    Err(ExitError::new(Exit::Unreachable, format!("{what} was not read: {why}; run dedupd check again")))
}

/// Fails with what would end a start now, by what the forecast has read. Returns what its operator may not expect.
pub(crate) fn check_start(
    config: &Config,
    prepared: &Prepared,
    checks: &Checks,
    forecast: &Forecast,
) -> Result<Vec<String>, ExitError> {
    let limit = PartitionCounts::new(checks.topology.partitions);
    let mut options = assembly::options(config, prepared.hasher, &checks.topology, &limit, 0);
    if checks.state_partitions == 0 {
        options.state_id = Some(ID_OF_NEW.to_owned());
    }
    let Forecast { committed, last, raw, state, unusable, .. } = forecast;
    if let Some((at, error)) = unusable {
        let place = format!("topic {} partition {} offset {}", config.topics.state, at.partition, at.offset);
        return Err(Fatal::unusable(&place, error).into());
    }
    let logs = StartLogs { last, raw, state };
    pipeline::check_start(&options, committed, logs)?;
    let foreign = forecast.has_foreign_records.then(|| pipeline::foreign_records(&config.group.id));
    Ok(pipeline::start_notes(&options, committed, logs).into_iter().chain(foreign).collect())
}
