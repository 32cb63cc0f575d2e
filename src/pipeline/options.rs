//! The validated options of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use crate::config::{
    Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, OnStop, Scope, Start,
};
use crate::dedupe::{
    Checkpoint, CompareRule, Fingerprint, HashKind, IdentityRule, Offset, PartitionId, StateKey,
    other_version,
};
use crate::pipeline::commit::size::TransactionSize;
use crate::pipeline::error::Fatal;
use crate::pipeline::journal::Journals;
use crate::pipeline::journal::loading::LoadPart;
use crate::pipeline::kinds::Kinds;
use crate::pipeline::limits::Limits;
use crate::pipeline::partition_counts::PartitionCounts;
use crate::pipeline::report::CountedBy;
#[cfg(feature = "failpoints")]
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Committed, LogId};

impl Mode {
    /// The warning shown to the operator while this mode is active.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Drop => None,
            Self::Shadow => Some("dedupe.mode = \"shadow\": duplicates are not dropped, only marked"),
            Self::Bypass => Some(
                "dedupe.mode = \"bypass\": every record is forwarded and no id is stored; set it back to \"drop\" soon",
            ),
        }
    }
}

/// All settings of a worker.
///
/// Large because it has a field for each setting.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Name of the raw topic, for messages.
    pub raw: String,
    /// Topic id of the raw topic; `None` where the broker does not report it.
    pub raw_id: Option<String>,
    /// Name of the state topic, for messages.
    pub state: String,
    /// Topic id of the state topic; `None` where the broker does not report it.
    pub state_id: Option<String>,
    /// How long the state topic retains its records; `None` without a limit, or if the broker does not report it.
    pub state_retention: Option<Duration>,
    /// Which partitions exist in both the clean and the state topic.
    pub partition_counts: PartitionCounts,
    /// Number of raw partitions when this process started.
    pub raw_partitions: u32,
    /// The consumer group, for messages.
    pub group: String,
    /// Transactional id of this worker.
    pub writer: String,
    /// Where ids are read from.
    pub rule: IdentityRule,
    /// What of two records with one id is compared.
    pub compare: CompareRule,
    /// Whether the operator has chosen that.
    pub is_compare_set: bool,
    /// By what duplicates are counted.
    pub counted_by: Vec<CountedBy>,
    /// The identity rules for which windows may start empty, once: the operator accepts the change to these.
    pub accept_change: Option<Fingerprint>,
    /// The hash that makes identities from ids.
    pub hash: HashKind,
    /// The kinds of records, and for how long the ids of each are stored.
    pub kinds: Kinds,
    /// Limits on the windows of this process.
    pub limits: Limits,
    /// Whether duplicates are dropped, only counted, or not searched.
    pub mode: Mode,
    /// Where copies are found.
    pub scope: Scope,
    /// Whether dropped records go to the duplicates topic.
    pub keep_duplicates: bool,
    /// A record with this header is forwarded regardless of its id.
    pub force_header: Option<String>,
    /// Policy for records without id.
    pub on_missing: OnMissing,
    /// Policy for records whose id has an owner with other content.
    pub on_conflict: OnConflict,
    /// Policy for records that the broker rejects.
    pub on_poison: OnPoison,
    /// For how long a rejected record is retried before the policy applies.
    pub poison_retry: Duration,
    /// Start offset of a group without committed offsets.
    pub start: Start,
    /// Policy for a group that was rewound.
    pub on_rewind: OnRewind,
    /// Policy for a committed offset that is outside of the raw log.
    pub on_gap: OnGap,
    /// Whether a stop ends the membership in the group.
    pub on_stop: OnStop,
    /// A safeguard that a test disables.
    #[cfg(feature = "failpoints")]
    pub disabled: Option<Safeguard>,
    /// A transaction is committed when its size reaches one of these limits.
    pub transaction_limit: TransactionSize,
    /// Longest time a transaction stays open while records arrive.
    pub interval: Duration,
    /// How long the broker keeps a transaction open.
    pub transaction_timeout: Duration,
    /// Most identities of a block.
    pub block_ids: usize,
    /// Records at the end of a journal that are searched for writers, and read first to find its last entry where no checkpoint names it.
    pub evidence_records: Offset,
    /// How much local state one iteration reads.
    pub load_part: LoadPart,
    /// An iteration processes no more records after the first commit that ends later than this after its start.
    pub iteration_time: Duration,
}

impl WorkerOptions {
    /// Whether copies are found in all partitions.
    pub(crate) fn is_topic_wide(&self) -> bool {
        self.scope == Scope::Topic
    }

    /// Whether records of this kind are forwarded without a lookup in the window.
    pub(crate) fn bypasses_window(&self, kind: usize) -> bool {
        self.mode == Mode::Bypass || self.kinds.get(kind).is_none_or(|it| it.window.is_none())
    }

    /// Number of windows of a worker with these journals.
    pub(crate) fn windows_of(&self, journals: &Journals) -> u64 {
        journals.iter().count() as u64 * self.kinds.windows()
    }

    /// The journal of a raw partition: a partition of the state topic. In topic scope one journal has all partitions.
    pub(crate) fn journal_of(&self, partition: PartitionId) -> PartitionId {
        if self.is_topic_wide() { 0 } else { partition }
    }

    /// The journals of these raw partitions.
    pub(crate) fn journals_of(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
    ) -> BTreeSet<PartitionId> {
        partitions.into_iter().map(|id| self.journal_of(id)).collect()
    }

    /// The committed offsets by journal.
    pub(crate) fn by_journal(&self, answers: Vec<Committed>) -> BTreeMap<PartitionId, Vec<Committed>> {
        let mut journals: BTreeMap<PartitionId, Vec<Committed>> = BTreeMap::new();
        for answer in answers {
            journals.entry(self.journal_of(answer.partition)).or_default().push(answer);
        }
        journals
    }

    /// The clean logs of these raw partitions, and their journals, each once.
    pub(crate) fn outputs_of(&self, partitions: &[PartitionId]) -> Vec<LogId> {
        let clean = partitions.iter().copied().map(LogId::clean);
        clean.chain(self.journals_of(partitions.iter().copied()).into_iter().map(LogId::state)).collect()
    }

    /// The key of a state record written by this worker.
    pub(crate) fn state_key(&self) -> StateKey {
        StateKey {
            rule: Some(self.rule.fingerprint()),
            raw: self.raw_id.clone(),
            is_topic_wide: self.is_topic_wide(),
            writer: self.writer.clone(),
            kind: None,
        }
    }

    /// The checkpoint as written by this worker: with the ids of the topics and the name of the writer.
    pub(crate) fn signed(&self, checkpoint: Checkpoint) -> Checkpoint {
        Checkpoint {
            raw: self.raw_id.clone(),
            state: self.state_id.clone(),
            is_topic_wide: self.is_topic_wide(),
            writer: self.writer.clone(),
            ..checkpoint
        }
    }

    /// Fails when the id of the raw topic differs from the one that state or offsets were written for.
    pub(crate) fn same_raw(&self, theirs: Option<&str>, ours: Option<&str>) -> Result<(), Fatal> {
        match theirs.zip(ours).filter(|(theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some((theirs, ours)) => Err(Fatal::Operator(format!(
                "topic {} was deleted and recreated, or topics.raw was changed: its id is {ours}, but topic {} and the group's \
                 offsets were written for {theirs}. Its offsets do not show what was processed. Restore topics.raw; or, to \
                 start with an empty window, set topics.state and group.id to other names",
                self.raw, self.state
            ))),
        }
    }

    /// Fails when a record of the state topic was written for another raw topic: by another group, or before raw was recreated.
    pub(crate) fn same_pair(&self, key: &StateKey) -> Result<(), Fatal> {
        let same = self.same_raw(key.raw.as_deref(), self.raw_id.as_deref());
        let is_ours = self.is_writer_of_group(key);
        same.map_err(|recreated| match &key.raw {
            Some(theirs) if !is_ours && !key.writer.is_empty() => Fatal::Operator(format!(
                "topic {} has the state of another raw topic: {} wrote it for the topic with the id {theirs}, not group {} for topic \
                 {}. Give this pair of topics its own topics.state; to merge several topics into one, use dedupd rekey",
                self.state, key.writer, self.group, self.raw
            )),
            _ => recreated,
        })
    }

    /// Fails when the state was written by another group, and this one has no offset: two groups that run with the same topics write
    /// each record twice.
    pub(crate) fn same_group(&self, key: &StateKey) -> Result<(), Fatal> {
        if key.writer.is_empty() || self.is_writer_of_group(key) {
            return Ok(());
        }
        Err(Fatal::Operator(format!(
            "topic {} has the state of another group: {} wrote it, and group {} has no offset of topic {}. If both groups run, each \
             record is written twice. Correct group.id; to continue under the new name, stop the other group, and set the offsets of \
             this one to those of the other with kafka-consumer-groups.sh; or give this pair of topics its own topics.state",
            self.state, key.writer, self.group, self.raw
        )))
    }

    fn is_writer_of_group(&self, key: &StateKey) -> bool {
        key.writer.strip_prefix(&self.group).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Fails when the id of the state topic differs from the one that the group's offsets were committed with.
    pub(crate) fn same_state(&self, theirs: Option<&str>) -> Result<(), Fatal> {
        match theirs.zip(self.state_id.as_deref()).filter(|(theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some((theirs, ours)) => Err(Fatal::Operator(format!(
                "topic {} was deleted and recreated, or topics.state was changed: its id is {ours}, but the group's offsets were \
                 committed with {theirs}. Restore topics.state or the topic; or, to continue from the committed offsets with \
                 windows that start empty, {}",
                self.state,
                self.to_current()
            ))),
        }
    }

    /// Fails when a worker cannot continue from an offset of the group: it was committed by a later release, for other topics, or in another scope.
    pub(crate) fn check_metadata(&self, answer: &Committed) -> Result<(), Fatal> {
        if let Some(version) = other_version(&answer.metadata) {
            return Err(Fatal::State(format!(
                "the offset of partition {} of topic {} was committed by another release of dedupd, with a checkpoint of \
                 version {version} that this build cannot read; start that release; or, to continue from the committed offsets with windows \
                 that start empty, set topics.state to a new topic and {}",
                answer.partition,
                self.raw,
                self.to_current()
            )));
        }
        let Some(checkpoint) = Checkpoint::parse(&answer.metadata) else { return Ok(()) };
        self.same_raw(checkpoint.raw.as_deref(), self.raw_id.as_deref())?;
        self.same_state(checkpoint.state.as_deref())?;
        self.same_scope(checkpoint.is_topic_wide, || {
            format!(
                "the group's offset for partition {} of topic {} was committed",
                answer.partition, self.raw
            )
        })
    }

    /// Fails when `what` was written in another scope: copies in other partitions would be written, or records with an id of another partition
    /// dropped, and the state is in other journals.
    pub(crate) fn same_scope(&self, is_topic_wide: bool, what: impl FnOnce() -> String) -> Result<(), Fatal> {
        if is_topic_wide == self.is_topic_wide() {
            return Ok(());
        }
        let theirs = if is_topic_wide { Scope::Topic } else { Scope::Partition }.as_str();
        Err(Fatal::State(format!(
            "{} with dedupe.scope = \"{theirs}\", but the configured scope is \"{}\". Set dedupe.scope = \"{theirs}\". To change the scope, \
             with windows that start empty, set topics.state to a new topic and {}",
            what(),
            self.scope.as_str(),
            self.to_current()
        )))
    }

    /// How the group continues where it is, without its checkpoints: another group would process all of raw again.
    pub(crate) fn to_current(&self) -> String {
        format!(
            "stop all instances, and set the group's offsets to their current values: kafka-consumer-groups.sh --reset-offsets --to-current \
             --execute --topic {} with the group's name",
            self.raw
        )
    }
}
