//! The consumer group as a whole: the raw partitions of each member, the committed offsets, and a forced rebalance when
//! partitions are not assigned to any member.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::groups::GroupMemberInfo;

use super::client_config::Settings;
use super::connection::{self, ProblemCapture};
use super::ends::Offsets;
use super::error::failure;
use super::log_context::LogContext;
use super::native;
use super::partitions::list_of;
use super::reader::{Reader, client};
use super::rights;
use crate::dedupe::PartitionId;
use crate::ports::{Committed, Failure, Remedy};

/// Interval at which the temporary member checks whether it can leave.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What the coordinator appends to the start of a member id: a hyphen and a UUID of 36 characters.
const MEMBER_SUFFIX: usize = 37;

/// The state of the group as the coordinator reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupState {
    /// Every member has its assignment.
    Stable,
    /// A rebalance is in progress.
    Rebalancing,
    /// The group has no members.
    #[default]
    Empty,
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id: `group.instance.id` or `client.id`, a hyphen and a UUID.
    pub id: String,
    /// Its address, as the group coordinator sees it.
    pub host: String,
    /// The name of its worker, `<group>.<instance>.<worker>`: in partition scope also its transactional id. The `client.id` of a
    /// member that is not of dedupd.
    pub worker: String,
    /// Its partitions of the raw topic.
    pub partitions: Vec<PartitionId>,
}

impl Member {
    /// The name of its instance; the client id of a member that is not of dedupd.
    #[must_use]
    pub fn instance(&self, group: &str) -> &str {
        let own = self.worker.strip_prefix(group).and_then(|it| it.strip_prefix('.'));
        own.and_then(|it| it.rsplit_once('.')).map_or(&self.worker, |(name, _)| name)
    }
}

/// The group as its coordinator describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupView {
    /// Its state. The partitions of the members are known only when the group is stable.
    pub state: GroupState,
    pub members: Vec<Member>,
}

/// Describes the group, with a client that is not a member of it.
pub struct GroupMonitor {
    client: Reader,
    settings: Settings,
}

impl GroupMonitor {
    /// Creates the client; sends no request yet.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        // Not read_committed: reading the lag must not wait for pending transactions.
        Ok(Self { client: client(settings, "read_uncommitted")?, settings: settings.clone() })
    }

    /// The members of the group and their partitions of the raw topic.
    pub fn view(&self, wait: Duration) -> Result<GroupView, Failure> {
        view(&self.client, &self.settings, wait)
    }

    /// The members of the group. An answer without any counts only when the coordinator has loaded the group.
    pub fn members(&self, wait: Duration) -> Result<Vec<Member>, Failure> {
        let members = self.view(wait)?.members;
        if !members.is_empty() {
            return Ok(members);
        }
        // A coordinator that is still loading the group describes it as empty, and returns no committed offsets.
        self.committed([0], wait)?;
        Ok(self.view(wait)?.members)
    }

    /// Whether this is the static member of this worker, perhaps of an earlier run.
    #[must_use]
    pub fn is_own_static(&self, member: &Member) -> bool {
        self.settings.instance.as_deref().is_some_and(|own| is_static_member(&member.id, own))
    }

    /// The first member that is not of dedupd, with the remedy.
    #[must_use]
    pub fn foreign_member(&self, members: &[Member]) -> Option<String> {
        let Settings { group, properties, .. } = &self.settings;
        let client_id =
            properties.iter().find(|(key, _)| key == "client.id").map(|(_, value)| value.as_str());
        let is_foreign =
            |it: &&Member| Some(it.worker.as_str()) != client_id && !is_worker(group, &it.worker);
        let Member { id, host, worker, .. } = members.iter().find(is_foreign)?;
        Some(format!(
            "the member {id} of group {group} ({worker} at {host}) is not of dedupd: stop it, or give it another group.id"
        ))
    }

    /// One sentence for each permission on a topic that is missing; none when the broker does not report them.
    pub fn missing_permissions(&self, wait: Duration) -> Vec<String> {
        let wanted = rights::on_topics(&self.settings);
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let described = native::topics(self.client.client(), &names, wait).unwrap_or_default();
        rights::lacking(&self.settings, &wanted, &described, false)
    }

    /// Why no broker answers, for use after a failed call; `None` when one does, or when the reason is not recognised. A client
    /// that is not polled receives no error events, so a new one connects.
    pub fn connection_problem(&self, wait: Duration) -> Option<String> {
        let config = self.settings.reader("read_uncommitted");
        let client = ProblemCapture::reader(config.clone()).ok()?;
        client.client().fetch_metadata(Some(&self.settings.raw), wait).err()?;
        Some(connection::connection_problem(&client, &config)?.what)
    }

    /// The committed offsets of the group, without those of open transactions. A partition without one is omitted.
    pub fn committed(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        let answers = self.answers(partitions, wait)?;
        Ok(answers.into_iter().flatten().filter_map(|it| Some((it.partition, it.offset?))).collect())
    }

    /// The same with metadata, and with partitions without an offset. Each partition can have a failure of its own.
    pub fn answers(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        wait: Duration,
    ) -> Result<Vec<Result<Committed, Failure>>, Failure> {
        let Settings { group, raw, .. } = &self.settings;
        let fail = |e: &KafkaError| {
            failure(&format!("reading the committed offsets of topic {raw} in group {group}"), e)
        };
        let list = list_of(partitions.into_iter().map(|id| (raw.as_str(), id)));
        let answers = native::committed(self.client.client(), &list, wait).map_err(|e| fail(&e))?;
        let answers = answers.into_iter().map(|it| it.map_err(|code| fail(&KafkaError::OffsetFetch(code))));
        Ok(answers.collect())
    }

    /// Forces a rebalance: a temporary member joins the group and leaves it. Returns whether it joined within `limit`;
    /// returns early when `stop` is set.
    ///
    /// The coordinator always starts a rebalance for a new dynamic member. It does not for a static member that returns, nor
    /// for a member that rejoins with the same subscription. The temporary member subscribes to the state topic, so no
    /// partition of raw moves because of it.
    pub fn force_rebalance(&self, limit: Duration, stop: &AtomicBool) -> Result<bool, Failure> {
        let settings = Settings { instance: None, ..self.settings.clone() };
        let doing = || format!("joining group {} to force a rebalance", settings.group);
        let member: Authenticated<BaseConsumer<TemporaryMember>> =
            tokens::create(&settings.source(), TemporaryMember::default())
                .map_err(|e| failure(&doing(), &e))?;
        member.subscribe(&[&settings.state]).map_err(|e| failure(&doing(), &e))?;
        let mut left = limit;
        while !member.context().joined.load(Ordering::Acquire) {
            if left.is_zero() || stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            if let Some(Err(error)) = member.poll(POLL_INTERVAL) {
                let failed = failure(&doing(), &error);
                if failed.remedy == Remedy::Stop {
                    return Err(failed);
                }
                tracing::debug!(%failed, "polling the temporary member failed; retrying");
            }
            left = left.saturating_sub(POLL_INTERVAL);
        }
        Ok(true)
    }
}

/// The members of the group and their partitions of the raw topic.
///
/// Uses the older of the client's two calls. The newer one (`DescribeConsumerGroups`) ends the process with a failed
/// assertion when the coordinator becomes unavailable during the call (librdkafka 2.12.1,
/// `rd_kafka_enq_once_del_source_return`).
pub(super) fn view(
    client: &BaseConsumer<LogContext>,
    Settings { group, raw, .. }: &Settings,
    wait: Duration,
) -> Result<GroupView, Failure> {
    let fail = |e: &KafkaError| failure(&format!("describing group {group}"), e);
    let list = client.client().fetch_group_list(Some(group), wait).map_err(|e| fail(&e))?;
    let Some(found) = list.groups().iter().find(|it| it.name() == group) else {
        return Ok(GroupView::default());
    };
    let state = match found.state() {
        "Stable" => GroupState::Stable,
        "Empty" | "Dead" => GroupState::Empty,
        _ => GroupState::Rebalancing,
    };
    let member = |it: &GroupMemberInfo| Member {
        id: it.id().to_owned(),
        host: it.client_host().trim_start_matches('/').to_owned(),
        worker: worker_name(group, it.id(), it.client_id()),
        partitions: it.assignment().and_then(|bytes| decode_assignment(bytes, raw)).unwrap_or_default(),
    };
    Ok(GroupView { state, members: found.members().iter().map(member).collect() })
}

/// The name of a member's worker. It is the client id, unless `kafka.properties` sets another `client.id`; then it follows from
/// `group.instance.id`, with which the id of a static member begins in place of the client id.
fn worker_name(group: &str, id: &str, client_id: &str) -> String {
    let parts = id.len().checked_sub(MEMBER_SUFFIX).and_then(|at| id.split_at_checked(at));
    match parts.filter(|(start, uuid)| uuid.starts_with('-') && *start != client_id) {
        Some((instance, _)) => format!("{group}.{instance}"),
        None => client_id.to_owned(),
    }
}

/// Whether this is the name of a worker of the group: `<group>.<instance>.<number>`.
fn is_worker(group: &str, name: &str) -> bool {
    let parts =
        name.strip_prefix(group).and_then(|it| it.strip_prefix('.')).and_then(|it| it.rsplit_once('.'));
    parts.is_some_and(|(_, number)| number.parse::<usize>().is_ok())
}

/// Whether a member id is one of the static member `instance`.
fn is_static_member(id: &str, instance: &str) -> bool {
    id.strip_prefix(instance).is_some_and(|rest| rest.len() == MEMBER_SUFFIX && rest.starts_with('-'))
}

/// Decodes the partitions of `topic` from an assignment in the consumer protocol format: a version, then each topic's name
/// and partitions. `None` when the bytes are malformed.
fn decode_assignment(bytes: &[u8], topic: &str) -> Option<Vec<PartitionId>> {
    let mut rest = bytes.get(2..)?;
    let mut partitions = Vec::new();
    for _ in 0..read_u32(&mut rest)? {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (name, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        rest = after;
        for _ in 0..read_u32(&mut rest)? {
            let partition = read_u32(&mut rest)?;
            if name == topic.as_bytes() {
                partitions.push(partition);
            }
        }
    }
    Some(partitions)
}

fn read_u32(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_be_bytes(*number))
}

/// The context of a member that only joins, to force a rebalance.
#[derive(Default)]
struct TemporaryMember {
    joined: AtomicBool,
}

impl ClientContext for TemporaryMember {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        LogContext.error(error, reason);
    }
}

impl ConsumerContext for TemporaryMember {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if matches!(rebalance, Rebalance::Assign(_)) {
            self.joined.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_recognised_with_any_client_id() {
        let uuid = "4a7a12d6-66a3-4b0f-8b57-40f5f4a8f9d1";
        let name = |start: &str, client_id: &str| worker_name("g", &format!("{start}-{uuid}"), client_id);
        assert_eq!(name("i.0", "g.i.0"), "g.i.0", "a static member");
        assert_eq!(name("i.0", "team"), "g.i.0", "a static member with another client.id");
        assert_eq!(name("g.i.0", "g.i.0"), "g.i.0", "a dynamic member");
        assert_eq!(name("team", "team"), "team", "a dynamic member with another client.id");
        for id in ["", "x", uuid, "a coordinator with ids of another form and more characters"] {
            assert_eq!(worker_name("g", id, "g.i.0"), "g.i.0", "{id}");
        }
    }

    #[test]
    fn a_member_of_another_program_is_recognised() {
        assert!(is_worker("g", "g.i.0") && is_worker("g.h", "g.h.i.j.12"));
        for name in ["console", "rdkafka", "g", "g.0", "g.console", "g.i.", "gg.i.0", "h.i.0"] {
            assert!(!is_worker("g", name), "{name}");
        }
    }

    #[test]
    fn a_member_id_belongs_to_one_static_member() {
        let uuid = "4a7a12d6-66a3-4b0f-8b57-40f5f4a8f9d1";
        assert!(is_static_member(&format!("a.0-{uuid}"), "a.0"));
        assert!(!is_static_member(&format!("a.0-b.0-{uuid}"), "a.0"));
        assert!(!is_static_member(&format!("a.01-{uuid}"), "a.0"));
        assert!(!is_static_member("a.0", "a.0") && !is_static_member(uuid, "a.0"));
    }

    #[test]
    fn a_consumer_protocol_assignment_is_decoded_and_a_truncated_one_is_not() {
        let mut bytes = vec![0, 1, 0, 0, 0, 2, 0, 3];
        bytes.extend(b"raw");
        bytes.extend([0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 1, 0, 0, 5]);
        bytes.extend(b"state");
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(decode_assignment(&bytes, "raw"), Some(vec![7, 256]));
        assert_eq!(decode_assignment(&bytes, "state"), Some(vec![3]));
        assert_eq!(decode_assignment(&bytes, "other"), Some(Vec::new()));
        assert_eq!(decode_assignment(&[0, 0, 0, 0, 0, 0], "raw"), Some(Vec::new()));
        for length in 0..bytes.len() - 4 {
            assert_eq!(decode_assignment(&bytes[..length], "raw"), None, "{length} bytes");
        }
    }
}
