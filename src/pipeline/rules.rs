//! Identities of another rule: what is refused, what is left out, and how a window begins anew.
//!
//! Each state record and each committed offset names the rule by which its identities were made; what names none was
//! written before that, and counts as ours. Another rule than the configured one is an operator's business: equal bytes
//! from another field would count as known, and new events be dropped. Once the change is accepted, the windows
//! concerned begin empty, and the first commit after it says so twice: its checkpoint names the new rule, and its state
//! record the kinds that begin anew with it. From then on what stands before is left out without a question.

use std::collections::BTreeSet;

use super::checkpoint::{Checkpoint, Origin};
use super::options::Options;
use super::partition::Phase;
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::dedupe::{Fingerprint, HashKind, KindId, PartitionId, Windows};
use crate::ports::{Sink, Store};

impl Options {
    /// The rule by which a kind's window has its identities; `None` for a kind without a window.
    fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
        self.rules().into_iter().find(|(of, _)| *of == kind).map(|(_, rule)| rule)
    }

    /// The rules of all windows.
    pub(super) fn rules(&self) -> Vec<(KindId, Fingerprint)> {
        self.kinds.rules(self.rule.fingerprint())
    }

    /// The kinds whose windows the group has by another rule than ours.
    pub(super) fn kinds_by_other_rules(&self, checkpoint: Option<&Checkpoint>) -> BTreeSet<KindId> {
        let told = |kind| checkpoint.and_then(|checkpoint| checkpoint.rule_of(kind));
        let others =
            self.rules().into_iter().filter(|(kind, ours)| told(*kind).is_some_and(|it| it != *ours));
        others.map(|(kind, _)| kind).collect()
    }

    /// The same, refused unless that was accepted.
    fn same_rules(
        &self,
        checkpoint: Option<&Checkpoint>,
        partition: PartitionId,
    ) -> Result<BTreeSet<KindId>, Fatal> {
        let others = self.kinds_by_other_rules(checkpoint);
        if let Some(first) = others.first() {
            let theirs = checkpoint.and_then(|checkpoint| checkpoint.rule_of(*first));
            let place = format!("the group's offset for partition {partition} of topic {}", self.raw);
            self.accepted(&place, *first, theirs)?;
        }
        Ok(others)
    }

    fn accepted(&self, place: &str, kind: KindId, theirs: Option<Fingerprint>) -> Result<(), Fatal> {
        let all = self.kinds.fingerprint(self.rule.fingerprint());
        if self.accept_change == Some(all) {
            return Ok(());
        }
        let of =
            self.kinds.name_of(kind.filed(0)).map(|name| format!(" of kind {name:?}")).unwrap_or_default();
        let theirs = theirs.map_or("another".to_owned(), |theirs| theirs.to_string());
        let ours = self.rule_of(kind).map_or("none".to_owned(), |ours| ours.to_string());
        Err(Fatal::State(format!(
            "{place} was written by the identity rule {theirs}{of}, the configuration says {ours}: equal bytes from other \
             fields would count as known ids, and new events would be dropped. Restore identity.from, identity.hash with its \
             key, and what [[kinds]] go by; or begin anew with other names for topics.state and group.id; or let the window \
             begin empty, once, with identity.accept_change = \"{all}\""
        )))
    }
}

impl<W: World> Core<W> {
    /// Refuses a group that has windows by other rules, unless that was accepted; whether there are any.
    pub(super) fn is_of_other_rules(
        &mut self,
        id: PartitionId,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<bool, Fatal> {
        let others = self.options.same_rules(checkpoint, id)?;
        let any = !others.is_empty();
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.anew = others;
        }
        Ok(any)
    }

    /// Whether a state record read for a restore was made by another rule, or before a window began anew: then it
    /// tells how far the state reaches, and nothing else. `place` names it.
    pub(super) fn is_foreign(
        &mut self,
        (id, place): (PartitionId, &str),
        origin: &Origin,
        (hash, filed): (HashKind, PartitionId),
    ) -> Result<bool, Trouble> {
        let (kind, _) = KindId::of_filed(filed);
        let ours = self.options.rule_of(kind);
        let other_rule = origin.rule.zip(ours).is_some_and(|(theirs, ours)| theirs != ours);
        let Some(Phase::Restoring(restoring)) = self.partitions.get(id).map(|p| &p.phase) else {
            return Ok(false);
        };
        let whole = restoring.emptied.contains(&kind);
        if !other_rule && hash == self.options.hash {
            origin.anew.iter().try_for_each(|kind| self.discard_read(id, *kind))?;
            return Ok(whole);
        }
        let told =
            restoring.checkpoint.as_ref().and_then(|it| it.rule_of(ours.map_or(KindId::UNNAMED, |_| kind)));
        let settled = whole || told.is_some() && told == ours.or(self.options.rule_of(KindId::UNNAMED));
        if !settled {
            self.options.accepted(place, kind, origin.rule)?;
        }
        // The rule of all records is part of that of each kind.
        let concerned = if kind == KindId::UNNAMED {
            self.options.rules().into_iter().map(|(kind, _)| kind).collect()
        } else {
            vec![kind]
        };
        for kind in concerned {
            self.discard_read(id, kind)?;
            if let Some(partition) = self.partitions.get_mut(id).filter(|_| !settled) {
                partition.anew.insert(kind);
            }
        }
        Ok(true)
    }

    /// Forgets what was read so far for a kind. Of one without a window nothing was taken in, and its blocks are not held.
    fn discard_read(&mut self, id: PartitionId, kind: KindId) -> Result<(), Trouble> {
        if self.options.rule_of(kind).is_none() {
            return Ok(());
        }
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let windows = partition.windows.iter_mut().flat_map(Windows::iter_mut);
        windows.filter(|(of, _)| *of == kind).for_each(|(_, window)| {
            window.truncate(0);
        });
        Ok(self.store.clear(kind.filed(id))?)
    }

    /// The state was read: windows that begin anew say so with the next commit, which comes at once.
    pub(super) fn begin_anew(&mut self, id: PartitionId) {
        let Some(partition) = self.partitions.get_mut(id).filter(|p| !p.anew.is_empty()) else { return };
        let kinds = &self.options.kinds;
        let named: Vec<_> = partition.anew.iter().filter_map(|kind| kinds.name_of(kind.filed(id))).collect();
        tracing::warn!(
            partition = id,
            kinds = ?named,
            "the identity rule was changed (identity.accept_change): windows begin empty here, and copies of earlier events \
             are forwarded"
        );
        (partition.rewound, partition.unsettled) = (true, true);
        for (kind, window) in partition.windows.iter_mut().flat_map(Windows::iter_mut) {
            if partition.anew.contains(&kind) {
                window.note_incomplete_before(window.stream_time_ms());
            }
        }
    }

    /// What stands beside a block in the state topic. The first of a partition in a transaction tells which windows begin
    /// anew with it.
    pub(super) fn origin_of(&self, filed: PartitionId, is_first: bool) -> Origin {
        let (kind, id) = KindId::of_filed(filed);
        let anew = self.partitions.get(id).filter(|_| is_first).map(|p| p.anew.iter().copied().collect());
        Origin {
            kind: self.options.kinds.name_of(filed).map(str::to_owned),
            rule: self.options.rule_of(kind),
            anew: anew.unwrap_or_default(),
            ..self.options.origin(self.sink.clean_end(id))
        }
    }
}
