//! State with identities of another rule: when it is rejected, what is skipped, and how a window is reset.
//!
//! The key of each record of a journal names the identity rule by which its identities were made, and each checkpoint the rules of all
//! windows. What names no rule for a kind counts as ours. A rule that differs from the configured one needs an operator: equal bytes
//! from another field would count as known ids, and new events would be dropped. Once the change is accepted, the affected windows
//! start empty. The first commit after that records the reset twice: its checkpoints name the new rule, and its sections
//! name the kinds whose windows are reset. From then on, entries before it are skipped without an error.

use std::collections::BTreeSet;

use crate::dedupe::{Checkpoint, Fingerprint, HashKind, JournalRecord, KindId, PartitionId, Window};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::restorer::Restorer;
use crate::pipeline::journal::restoring::Restoring;
use crate::pipeline::kinds::Kinds;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::Store;

impl WorkerOptions {
    /// The rule by which the identities in a kind's window are made; `None` for a kind without a window.
    pub(crate) fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
        self.rules().into_iter().find(|(of, _)| *of == kind).map(|(_, rule)| rule)
    }

    /// The rules of all windows.
    pub(crate) fn rules(&self) -> Vec<(KindId, Fingerprint)> {
        self.kinds.rules(self.rule.fingerprint())
    }

    /// The kinds for which the checkpoint names another rule than the configured one.
    pub(crate) fn kinds_by_other_rules(&self, checkpoint: Option<&Checkpoint>) -> BTreeSet<KindId> {
        let named = |kind| checkpoint.and_then(|checkpoint| checkpoint.rule_of(kind));
        let changed =
            self.rules().into_iter().filter(|(kind, ours)| named(*kind).is_some_and(|it| it != *ours));
        changed.map(|(kind, _)| kind).collect()
    }

    /// The kinds for which the checkpoint names another rule than the configured one. Fails unless the change was accepted.
    pub(crate) fn changed_rules(
        &self,
        checkpoint: Option<&Checkpoint>,
        partition: PartitionId,
    ) -> Result<BTreeSet<KindId>, Fatal> {
        let changed = self.kinds_by_other_rules(checkpoint);
        if let Some(first) = changed.first() {
            let place = format!("the group's offset for partition {partition} of topic {}", self.raw);
            self.check_accepted(&place, *first)?;
        }
        Ok(changed)
    }

    /// Fails unless `identity.accept_change` names the configured rules. `place` names what was written by the other rule.
    fn check_accepted(&self, place: &str, kind: KindId) -> Result<(), Fatal> {
        let all = self.kinds.fingerprint(self.rule.fingerprint());
        if self.accept_change == Some(all) {
            return Ok(());
        }
        let of = self.kinds.name_of(kind).map(|name| format!(" of kind {name:?}")).unwrap_or_default();
        Err(Fatal::State(format!(
            "{place} was written by another identity rule{of} than the configured one: equal bytes from other \
             fields would count as known ids, and new events would be dropped. Restore identity.from, identity.hash with its \
             key, and from and values of [[kinds]]; or start over with new names for topics.state and group.id; or start once \
             with an empty window: set identity.accept_change = \"{all}\""
        )))
    }
}

impl<W: WorkerPorts> Restorer<'_, W> {
    /// Whether a record of the journal was made by another rule, or before its window was reset.
    pub(crate) fn is_foreign(
        &mut self,
        restoring: &mut Restoring,
        record: &JournalRecord,
        hash: HashKind,
        kind: KindId,
    ) -> Result<bool, WorkerError> {
        let rule_of = |kind| restoring.rules.iter().find(|(of, _)| *of == kind).map(|(_, rule)| *rule);
        let ours = rule_of(kind);
        let other_rule = record.key.rule.zip(ours).is_some_and(|(theirs, ours)| theirs != ours);
        let is_emptied = restoring.emptied.contains(&kind);
        if !other_rule && hash == self.options.hash {
            return Ok(is_emptied);
        }
        let checkpoint = restoring.located.checkpoint.as_ref();
        let named = checkpoint.and_then(|it| it.rule_of(ours.map_or(KindId::UNNAMED, |_| kind)));
        let is_accepted = is_emptied || named.is_some() && named == ours.or(rule_of(KindId::UNNAMED));
        if !is_accepted {
            self.options.check_accepted(&self.place(record.offset), kind)?;
        }
        // The rule of the unnamed kind is part of the rule of every kind.
        let affected = if kind == KindId::UNNAMED {
            restoring.rules.iter().map(|(kind, _)| *kind).collect()
        } else {
            vec![kind]
        };
        for kind in affected {
            self.discard(restoring, kind)?;
            if !is_accepted {
                restoring.reset_kinds.insert(kind);
            }
        }
        Ok(true)
    }

    /// Discards what was read so far for a kind. For a kind without a window nothing was loaded, and this worker does not hold
    /// its owners in the store.
    pub(crate) fn discard(&mut self, restoring: &mut Restoring, kind: KindId) -> Result<(), WorkerError> {
        if restoring.rules.iter().all(|(of, _)| *of != kind) {
            return Ok(());
        }
        let id = kind.window(self.journal);
        // What waits may be of the entry that is being read, whose other kinds stay.
        restoring.unwritten.discard(id);
        restoring.windows.of_kind(kind).into_iter().for_each(Window::clear);
        Ok(self.store.clear(&[id])?)
    }
}

impl Journal {
    /// Called when the windows are complete: logs which ones are reset.
    pub(crate) fn log_window_resets(&mut self, kinds: &Kinds) {
        let Some(windows) = self.windows.as_mut().filter(|_| !self.reset_kinds.is_empty()) else { return };
        let named: Vec<_> = self.reset_kinds.iter().filter_map(|kind| kinds.name_of(*kind)).collect();
        tracing::warn!(
            journal = self.id,
            kinds = named.join(", "),
            "the identity rule has changed (identity.accept_change): windows start empty, and duplicates of earlier events \
             are forwarded"
        );
        let now_ms = windows.committed_ms();
        for (kind, window) in windows.iter_mut() {
            if self.reset_kinds.contains(&kind) {
                window.note_incomplete_before(now_ms);
            }
        }
    }
}
