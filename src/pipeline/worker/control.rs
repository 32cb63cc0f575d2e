//! Requests of the admin API to a running worker, answered between two transactions.

use std::collections::{BTreeMap, BTreeSet};

use super::{Core, World};
use crate::clock::Clock;
use crate::control::{Answer, Part, Place, Request, RequestError};
use crate::dedupe::{ForgetRecord, Identity, Look, Offset, PartitionId, Window, WindowId};
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::loading::unusable;
use crate::pipeline::partition::stored::Stored;
use crate::ports::{Sink, Store, StoreError};

/// The owner of an identity that is a false positive of a filter: no record has it.
const NO_OWNER: Offset = Offset::MAX;

impl<W: World> Core<W> {
    /// Answers one request, if there is any. Forgetting an id is a transaction of its own: its record in the state
    /// topic and the unchanged offsets, committed together.
    pub(crate) fn answer_request(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let Some(request) = self.control.as_ref().and_then(|control| control.try_recv().ok()) else {
            return Ok(());
        };
        if request.forget {
            // Pending records have no committed owner yet.
            self.commit(source)?;
        }
        let answer = self.find_owners(&request)?;
        if request.forget && !answer.places.is_empty() {
            if !self.producer.is_prepared {
                let what = "no transaction can be written, because the producer is being replaced; nothing is forgotten: retry";
                request.answer.send(Err(RequestError::Unavailable(what.to_owned()))).ok();
                return Ok(());
            }
            self.forget(source, request.identity, &answer.places)?;
        }
        // The requester may have timed out and closed the channel.
        request.answer.send(Ok(answer)).ok();
        Ok(())
    }

    fn find_owners(&self, request: &Request) -> Result<Answer, StoreError> {
        let mut answer = Answer::default();
        let requested = |p: &&Partition| request.partition.is_none_or(|only| only == p.id);
        for partition in self.partitions.iter().filter(requested) {
            match partition.running() {
                Some(running) => {
                    answer.looked_into.push(partition.id);
                    for (kind, window) in running.state.windows.iter() {
                        answer.places.extend(self.places(
                            kind.window(partition.id),
                            window,
                            request.identity,
                        )?);
                    }
                }
                None => answer.not_ready.push(partition.id),
            }
        }
        Ok(answer)
    }

    fn places(
        &self,
        window_id: WindowId,
        window: &Window,
        identity: Identity,
    ) -> Result<Vec<Place>, StoreError> {
        let look = Look::at(identity);
        let (partition, name) = (window_id.partition(), self.options.kinds.name_of(window_id.kind()));
        let place = |offset, time_ms, part| Place {
            partition,
            kind: name.map(str::to_owned),
            offset,
            time_ms,
            part,
            slice_ms: window.slice_begin(time_ms),
        };
        let owners = window.owners(&look, &Stored { store: &self.store, window: window_id })?;
        let mut places: Vec<Place> =
            owners.iter().map(|(owner, time_ms)| place(Some(*owner), *time_ms, Part::Exact)).collect();
        let Some(slice_ms) = window.slice_of(&look) else { return Ok(places) };
        // A filter bit does not contain the owner; the blocks do.
        self.store.scan(window_id, &mut |view| {
            let stored = view.owners_of(identity).map_err(|e| unusable(partition, &e))?;
            let older = stored.into_iter().filter(|owner| owners.iter().all(|(known, _)| known != owner));
            places.extend(older.map(|owner| place(Some(owner), view.header.time_first_ms, Part::Bloom)));
            Ok(())
        })?;
        if places.is_empty() {
            places.push(place(None, slice_ms, Part::Bloom));
        }
        Ok(places)
    }

    fn forget(
        &mut self,
        source: &W::Source,
        identity: Identity,
        places: &[Place],
    ) -> Result<(), WorkerError> {
        let owners = self.all_owners(identity, places)?;
        self.transaction.begin(&mut self.sink, || self.clock.elapsed())?;
        for (id, running) in self.partitions.running_mut() {
            let Some(owners) = owners.get(&id) else { continue };
            let state = &mut running.state;
            let forgotten = ForgetRecord {
                hash: self.options.hash,
                partition: id,
                number: state.forgets + 1,
                at: state.committed,
                owners: owners.iter().map(|owner| (*owner, identity)).collect(),
            };
            self.transaction.touch(id, &mut state.open).forgotten = Some(forgotten);
        }
        self.commit(source)?;
        tracing::info!(?places, "id forgotten");
        Ok(())
    }

    /// The owners of an identity in the partitions of these places: the ones in `places`, and older ones that exist
    /// only in the stored blocks, because a window evicted them. A larger window would load them from there.
    fn all_owners(
        &self,
        identity: Identity,
        places: &[Place],
    ) -> Result<BTreeMap<PartitionId, BTreeSet<Offset>>, StoreError> {
        let mut owners: BTreeMap<PartitionId, BTreeSet<Offset>> = BTreeMap::new();
        for place in places {
            owners.entry(place.partition).or_default().insert(place.offset.unwrap_or(NO_OWNER));
        }
        for (partition, owners) in &mut owners {
            for window in self.options.kinds.windows_of(*partition) {
                owners.extend(Stored { store: &self.store, window }.all_owners(identity)?);
            }
        }
        Ok(owners)
    }

    /// Writes the forgotten ids to the state topic, in the open transaction.
    pub(crate) fn put_forgotten(&mut self) -> Result<(), WorkerError> {
        for state in self.partitions.open_mut() {
            let Some(forgotten) = state.open.as_ref().and_then(|open| open.forgotten.as_ref()) else {
                continue;
            };
            let key = self.options.state_key(None);
            self.sink.put_state(state.id, &key.render(), &forgotten.encode())?;
        }
        Ok(())
    }
}
