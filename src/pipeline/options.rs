//! What a worker is told, already validated.

use std::time::Duration;

use super::batch::Partitions;
use super::checkpoint::Origin;
use super::kinds::Kinds;
use super::limits::Limits;
use super::loading::LoadSlice;
use super::reach::Reach;
use super::safeguard::Safeguard;
use super::trouble::Fatal;
pub use crate::config::{Mode, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, Start};
use crate::dedupe::{Fingerprint, HashKind, IdentityRule, Offset};

impl Mode {
    /// What an operator has to know of it, all the time that it is in force.
    #[must_use]
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Drop => None,
            Self::Shadow => Some("dedupe.mode = \"shadow\": no duplicate is dropped, they are only marked"),
            Self::Bypass => Some(
                "dedupe.mode = \"bypass\": every record is forwarded and no id remembered; set it back to \"drop\" as soon as you can",
            ),
        }
    }
}

/// Everything a worker has to know.
pub struct Options {
    /// Raw topic, for messages.
    pub raw: String,
    /// Kafka's id of the raw topic, where known.
    pub raw_id: Option<String>,
    /// State topic, for messages.
    pub state: String,
    /// Kafka's id of the state topic, where known.
    pub state_id: Option<String>,
    /// Which partitions the clean and the state topic have.
    pub reach: Reach,
    /// How many partitions the raw topic had when this process began.
    pub began: u32,
    /// Transactional id of this worker.
    pub writer: String,
    /// Where ids come from.
    pub rule: IdentityRule,
    /// The rules under which windows may begin empty, once: an operator accepts the change to them.
    pub accept_change: Option<Fingerprint>,
    /// The hash in force.
    pub hash: HashKind,
    /// The kinds of records, and how long each is remembered.
    pub kinds: Kinds,
    /// How much the windows of this process may hold.
    pub limits: Limits,
    /// What is done with duplicates.
    pub mode: Mode,
    /// Whether dropped records go to the duplicates topic.
    pub keep_duplicates: bool,
    /// A record with this header is forwarded whatever its id.
    pub force_header: Option<String>,
    /// Policy for records without id.
    pub on_missing: OnMissing,
    /// Policy for records that the broker refuses.
    pub on_poison: OnPoison,
    /// How long such a record is tried again before the policy.
    pub poison_retry: Duration,
    /// Where to begin.
    pub start: Start,
    /// Policy for a group that was rewound.
    pub on_rewind: OnRewind,
    /// Policy for an offset that the raw log does not hold.
    pub on_gap: OnGap,
    /// A rule that a test leaves out.
    pub without: Option<Safeguard>,
    /// Most records of one transaction.
    pub max_records: usize,
    /// Most bytes of one transaction.
    pub max_bytes: usize,
    /// Longest time a transaction stays open while records come.
    pub interval: Duration,
    /// How long the broker keeps a transaction open.
    pub transaction_timeout: Duration,
    /// Most identities of a block.
    pub block_ids: usize,
    /// Most partitions of one transaction.
    pub most_partitions: usize,
    /// How much local state one iteration reads.
    pub load_slice: LoadSlice,
}

impl Options {
    /// How many windows share what a worker with these partitions may hold.
    pub(super) fn windows_of(&self, partitions: &Partitions) -> u64 {
        partitions.iter().count() as u64 * self.kinds.windows()
    }

    /// What stands beside a record of ours in the state topic.
    pub(super) fn origin(&self, clean_end: Option<Offset>) -> Origin {
        Origin {
            clean_end,
            rule: Some(self.rule.fingerprint()),
            raw: self.raw_id.clone(),
            writer: self.writer.clone(),
            ..Origin::default()
        }
    }

    /// Refuses a raw topic that is not the one that something was written for.
    pub(super) fn same_raw(&self, theirs: Option<&str>, ours: Option<&str>) -> Result<(), Fatal> {
        match theirs.zip(ours).filter(|(theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some((theirs, ours)) => Err(Fatal::Operator(format!(
                "topic {} was deleted and created again: its id is {ours}, and topic {} and the group's offsets were \
                 written for {theirs}. Its offsets begin anew, so nobody can tell by them what was processed. To begin \
                 anew with an empty window, give topics.state and group.id other names",
                self.raw, self.state
            ))),
        }
    }

    /// Refuses a state topic that is not the one that the group's offsets were committed with.
    pub(super) fn same_state(&self, theirs: Option<&str>) -> Result<(), Fatal> {
        match theirs.zip(self.state_id.as_deref()).filter(|(theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some((theirs, ours)) => Err(Fatal::Operator(format!(
                "topic {} was deleted and created again: its id is {ours}, and the group's offsets were committed with \
                 {theirs}; what it held is gone. Restore it; or, to go on where the group stands with an empty window, \
                 stop all instances and set the group's offsets to what they are: kafka-consumer-groups.sh \
                 --reset-offsets --to-current --execute --topic {} with the group's name",
                self.state, self.raw
            ))),
        }
    }
}
