//! Where processing of partitions resumes, whichever worker owns them.

use std::collections::BTreeMap;

use crate::dedupe::PartitionId;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::local::{all_expired, usable};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::evidence::ResumePoint;
use crate::pipeline::torn::reading::next_piece;
use crate::ports::{GroupMember, Head, Store};

impl<W: WorkerPorts> Access<'_, W> {
    /// Where processing of these partitions resumes.
    pub(crate) fn resume_points(
        &mut self,
        ids: &[PartitionId],
    ) -> Result<BTreeMap<PartitionId, ResumePoint>, WorkerError> {
        // A journal is decided with all of its partitions.
        let all = self.ctx.all_members(&Vec::from_iter(self.ctx.options.journals_of(ids.iter().copied())));
        let answers = self.source.committed(&all, REQUEST_TIMEOUT)?;
        let mut unread = self.ctx.last_transactions(&answers)?;
        let mut resume_points = BTreeMap::new();
        while let Some(piece) = next_piece(&self.ctx.options, &mut unread) {
            let piece = self.ctx.read_evidence(piece, ids)?;
            for (evidence, clean) in piece.iter().zip(self.ctx.visibility(&piece)?) {
                let decision = evidence.decide(&clean, self.ctx.options.keeps(Safeguard::NewestCheckpoint));
                for id in ids.iter().filter(|id| evidence.answers.contains_key(id)) {
                    // The local state of a partition that another worker owns does not count.
                    let is_ours = self.ctx.partitions.get(*id).is_some();
                    let head = if is_ours { self.ctx.store.head(evidence.journal.into())? } else { None };
                    let is_usable =
                        |head: &Head| usable(Some(head.state_next), &evidence.bounds, false).is_some();
                    let local =
                        head.as_ref().and_then(|head| head.covered.get(id)).map(|covered| covered.next);
                    let local_end = local.filter(|_| head.as_ref().is_some_and(is_usable));
                    match evidence.resume_point(*id, &decision, local_end) {
                        Some(point) => drop(resume_points.insert(*id, point)),
                        None if is_ours => return Err(all_expired(&self.ctx.options, *id, local).into()),
                        // The owner of the partition reports this error, or resumes from its local state.
                        None => {}
                    }
                }
            }
        }
        Ok(resume_points)
    }
}
