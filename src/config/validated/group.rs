//! The consumer group.

use std::time::Duration;

use crate::config::as_typed::AsTyped;
use crate::config::choices::{OnGap, OnRewind, Start};
use crate::config::reading::Reading;
use crate::config::topic_name;

/// The consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The group's name; also the prefix of each transactional id.
    pub id: String,
    /// This instance's name in it, the same after a restart.
    pub instance: String,
    /// The number of members of this process, at least 1.
    pub workers: usize,
    /// Whether a restarted instance gets its partitions back without a rebalance.
    pub static_membership: bool,
    /// How long the broker waits for heartbeats of a member. Longer than the transaction timeout.
    pub session_timeout: Duration,
    /// The start offset when neither the group nor the state topic has an offset.
    pub start: Start,
    /// The policy when the group's offset is below the offset committed in the state topic.
    pub on_rewind: OnRewind,
    /// The policy when the raw log does not contain the next offset to process.
    pub on_gap: OnGap,
}

/// A larger value is taken for a typing error.
const MOST_WORKERS: u64 = 1_000;

pub(super) fn validate(all: &AsTyped, host: &str, reading: &mut Reading<'_>) -> Option<Group> {
    let typed = &all.group;
    let id = group_id(all, reading);
    let instance = instance(typed.instance.as_deref(), host, reading);
    let workers = reading.whole("group.workers", typed.workers.as_deref(), 1..=MOST_WORKERS);
    let static_membership = reading.flag("group.static_membership", typed.static_membership.as_deref());
    let second = Duration::from_secs(1);
    let session_timeout = reading.duration("group.session_timeout", typed.session_timeout.as_deref(), second);
    let start = reading.choice("group.start", typed.start.as_deref());
    let on_rewind = reading.choice("group.on_rewind", typed.on_rewind.as_deref());
    let on_gap = reading.choice("group.on_gap", typed.on_gap.as_deref());
    Some(Group {
        id: id?,
        instance: instance?,
        workers: usize::try_from(workers?).ok()?,
        static_membership: static_membership?,
        session_timeout: session_timeout?,
        start: start?,
        on_rewind: on_rewind?,
        on_gap: on_gap?,
    })
}

/// The group's name. The default consists of the topic names, which are checked separately.
fn group_id(all: &AsTyped, reading: &mut Reading<'_>) -> Option<String> {
    match (&all.group.id, &all.topics.raw, &all.topics.clean) {
        (Some(id), _, _) => {
            reading.required("group.id", Some(id), "name the group, or leave it out").map(str::to_owned)
        }
        (None, Some(raw), Some(clean)) => Some(format!("dedupd.{raw}.{clean}")),
        (None, _, _) => None,
    }
}

/// The instance's name. Kafka applies the rule of topic names to `group.instance.id`; the limit leaves room for the
/// worker number.
fn instance(typed: Option<&str>, host: &str, reading: &mut Reading<'_>) -> Option<String> {
    let name = typed.unwrap_or(host);
    let what = match topic_name::check(name) {
        Ok(()) if name.len() <= 240 => return Some(name.to_owned()),
        Ok(()) => format!("has {} characters, but at most 240 are allowed", name.len()),
        Err(what) => what,
    };
    let what = if typed.is_none() { format!("(the host name) {what}") } else { what };
    let remedy = "give a name that stays the same across restarts: letters, digits, '.', '_' and '-'";
    reading.reject("group.instance", Some(name), &what, remedy);
    None
}
