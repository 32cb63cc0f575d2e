//! State with identities of another rule: when it is rejected, what is skipped, and how a window is reset.
//!
//! Each state record and each committed offset names the identity rule by which its identities were made. Those that name no
//! rule were written by an older version, and count as ours. A rule that differs from the configured one needs an operator:
//! equal bytes from another field would count as known ids, and new events would be dropped. Once the change is accepted, the
//! affected windows start empty. The first commit after that records the reset twice: its checkpoint names the new rule, and
//! its state record names the kinds whose windows are reset. From then on, records before it are skipped without an error.

use std::collections::BTreeSet;

use super::checkpoint::{Checkpoint, Origin};
use super::error::{Fatal, WorkerError};
use super::options::Options;
use super::partition::Phase;
use super::worker::{Core, World};
use crate::dedupe::{Fingerprint, HashKind, KindId, PartitionId, WindowId, Windows};
use crate::ports::{Store, WrittenEnds};

impl Options {
    /// The rule by which the identities in a kind's window are made; `None` for a kind without a window.
    fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
        self.rules().into_iter().find(|(of, _)| *of == kind).map(|(_, rule)| rule)
    }

    /// The rules of all windows.
    pub(super) fn rules(&self) -> Vec<(KindId, Fingerprint)> {
        self.kinds.rules(self.rule.fingerprint())
    }

    /// The kinds for which the checkpoint names another rule than the configured one.
    pub(super) fn kinds_by_other_rules(&self, checkpoint: Option<&Checkpoint>) -> BTreeSet<KindId> {
        let named = |kind| checkpoint.and_then(|checkpoint| checkpoint.rule_of(kind));
        let changed =
            self.rules().into_iter().filter(|(kind, ours)| named(*kind).is_some_and(|it| it != *ours));
        changed.map(|(kind, _)| kind).collect()
    }

    /// The kinds for which the checkpoint names another rule. Fails unless the change was accepted.
    fn changed_rules(
        &self,
        checkpoint: Option<&Checkpoint>,
        partition: PartitionId,
    ) -> Result<BTreeSet<KindId>, Fatal> {
        let changed = self.kinds_by_other_rules(checkpoint);
        if let Some(first) = changed.first() {
            let theirs = checkpoint.and_then(|checkpoint| checkpoint.rule_of(*first));
            let place = format!("the group's offset for partition {partition} of topic {}", self.raw);
            self.check_accepted(&place, *first, theirs)?;
        }
        Ok(changed)
    }

    /// Fails unless `identity.accept_change` names the configured rules. `place` names what was written by the other rule.
    fn check_accepted(&self, place: &str, kind: KindId, theirs: Option<Fingerprint>) -> Result<(), Fatal> {
        let all = self.kinds.fingerprint(self.rule.fingerprint());
        if self.accept_change == Some(all) {
            return Ok(());
        }
        let of = self.kinds.name_of(kind).map(|name| format!(" of kind {name:?}")).unwrap_or_default();
        let theirs = theirs.map_or("another".to_owned(), |theirs| theirs.to_string());
        let ours = self.rule_of(kind).map_or("none".to_owned(), |ours| ours.to_string());
        Err(Fatal::State(format!(
            "{place} was written by the identity rule {theirs}{of}, but the configured rule is {ours}: equal bytes from other \
             fields would count as known ids, and new events would be dropped. Restore identity.from, identity.hash with its \
             key, and from and values of [[kinds]]; or start over with new names for topics.state and group.id; or accept an \
             empty window, once, with identity.accept_change = \"{all}\""
        )))
    }
}

impl<W: World> Core<W> {
    /// Whether the checkpoint names other rules than the configured ones. Fails unless the change was accepted.
    pub(super) fn has_other_rules(
        &mut self,
        id: PartitionId,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<bool, Fatal> {
        let changed = self.options.changed_rules(checkpoint, id)?;
        let any = !changed.is_empty();
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.reset_kinds = changed;
        }
        Ok(any)
    }

    /// Whether a state record read for a restore was made by another rule, or before its window was reset. Then only its range
    /// of offsets is used. `place` names the record in errors.
    pub(super) fn is_foreign(
        &mut self,
        (id, place): (PartitionId, &str),
        origin: &Origin,
        (hash, window): (HashKind, WindowId),
    ) -> Result<bool, WorkerError> {
        let kind = window.kind();
        let ours = self.options.rule_of(kind);
        let other_rule = origin.rule.zip(ours).is_some_and(|(theirs, ours)| theirs != ours);
        let Some(Phase::Restoring(restoring)) = self.partitions.get(id).map(|p| &p.phase) else {
            return Ok(false);
        };
        let is_emptied = restoring.emptied.contains(&kind);
        if !other_rule && hash == self.options.hash {
            origin.reset_kinds.iter().try_for_each(|kind| self.discard_read(id, *kind))?;
            return Ok(is_emptied);
        }
        let named =
            restoring.checkpoint.as_ref().and_then(|it| it.rule_of(ours.map_or(KindId::UNNAMED, |_| kind)));
        let settled =
            is_emptied || named.is_some() && named == ours.or(self.options.rule_of(KindId::UNNAMED));
        if !settled {
            self.options.check_accepted(place, kind, origin.rule)?;
        }
        // The rule of the unnamed kind is part of the rule of every kind.
        let affected = if kind == KindId::UNNAMED {
            self.options.rules().into_iter().map(|(kind, _)| kind).collect()
        } else {
            vec![kind]
        };
        for kind in affected {
            self.discard_read(id, kind)?;
            if let Some(partition) = self.partitions.get_mut(id).filter(|_| !settled) {
                partition.reset_kinds.insert(kind);
            }
        }
        Ok(true)
    }

    /// Discards what was read so far for a kind. For a kind without a window nothing was loaded, and this worker does not hold
    /// its blocks in the store.
    fn discard_read(&mut self, id: PartitionId, kind: KindId) -> Result<(), WorkerError> {
        if self.options.rule_of(kind).is_none() {
            return Ok(());
        }
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let windows = partition.windows.iter_mut().flat_map(Windows::iter_mut);
        windows.filter(|(of, _)| *of == kind).for_each(|(_, window)| {
            window.truncate(0);
        });
        Ok(self.store.clear(kind.window(id))?)
    }

    /// Called when the state is complete: logs the windows that are reset, and has the reset committed at once.
    pub(super) fn schedule_window_resets(&mut self, id: PartitionId) {
        let Some(partition) = self.partitions.get_mut(id).filter(|p| !p.reset_kinds.is_empty()) else {
            return;
        };
        let kinds = &self.options.kinds;
        let named: Vec<_> = partition.reset_kinds.iter().filter_map(|kind| kinds.name_of(*kind)).collect();
        tracing::warn!(
            partition = id,
            kinds = ?named,
            "the identity rule has changed (identity.accept_change): windows start empty, and duplicates of earlier events \
             are forwarded"
        );
        (partition.rewound, partition.uncommitted_position) = (true, true);
        for (kind, window) in partition.windows.iter_mut().flat_map(Windows::iter_mut) {
            if partition.reset_kinds.contains(&kind) {
                window.note_incomplete_before(window.stream_time_ms());
            }
        }
    }

    /// The key of a block in the state topic. The first block of a partition in a transaction names the kinds whose windows are
    /// reset with it.
    pub(super) fn origin_of(&self, window: WindowId, is_first: bool) -> Origin {
        let (kind, id) = (window.kind(), window.partition());
        let reset_kinds =
            self.partitions.get(id).filter(|_| is_first).map(|p| p.reset_kinds.iter().copied().collect());
        Origin {
            kind: self.options.kinds.name_of(kind).map(str::to_owned),
            rule: self.options.rule_of(kind),
            reset_kinds: reset_kinds.unwrap_or_default(),
            ..self.options.origin(self.sink.clean_end(id))
        }
    }
}
