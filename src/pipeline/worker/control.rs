//! Requests of the admin API to a running worker, answered between two transactions.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::control::{Answer, OwnerPlace, Request, RequestError, WindowPart};
use crate::dedupe::{Coordinates, ForgetRecord, IndexKey, JournalId, PartitionId, Window, WindowId};
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::loading::{Budget, LoadPart};
use crate::pipeline::journal::sealed::sealed_in;
use crate::pipeline::journal::stored::Stored;
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::worker::search::Search;
use crate::ports::{Store, StoreError};

/// Time to read the owners of the commit that precedes forgetting an id.
const LAST_READ: Duration = Duration::from_secs(1);

/// The requests of the admin API.
#[derive(Default)]
pub(crate) struct Admin {
    requests: Option<Receiver<Request>>,
    /// The request whose owners are being searched.
    search: Option<Search>,
}

impl Admin {
    /// Answers the requests of this channel.
    pub(crate) fn new(requests: Receiver<Request>) -> Self {
        Self { requests: Some(requests), search: None }
    }

    /// Whether a request waits for its next part.
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Answers one request, if there is any, or continues with it.
    pub(crate) fn answer_request<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
    ) -> Result<(), WorkerError> {
        let now = access.ctx.clock.elapsed();
        let next = || self.requests.as_ref()?.try_recv().ok().map(|request| Search::new(request, now));
        let Some(mut search) = self.search.take().or_else(next) else { return Ok(()) };
        if search.is_abandoned(now) {
            return Ok(());
        }
        let limit = &access.ctx.options.partition_counts;
        let (raw, count) = (&access.ctx.options.raw, limit.raw().max(limit.count()));
        if let Some(partition) = search.request.partition.filter(|partition| *partition >= count) {
            let what = format!("partition {partition} does not exist: {raw} has {count}");
            search.request.answer.send(Err(RequestError::Invalid(what))).ok();
            return Ok(());
        }
        let LoadPart { ids, time, .. } = access.ctx.options.load_part;
        if !access.ctx.read_part(&mut search, Budget { ids: ids.max(1), until: now + time })? {
            self.search = Some(search);
            return Ok(());
        }
        if search.request.forget {
            // Pending records have no committed owner yet.
            access.committer.commit(access.ctx, access.source)?;
            let now = access.ctx.clock.elapsed();
            let until = now + LAST_READ;
            // The commit may have taken longer than the requester waits.
            if search.is_abandoned(now) {
                return Ok(());
            }
            if !access.ctx.search_new(&mut search, Budget { ids: u64::MAX, until })? {
                self.search = Some(search);
                return Ok(());
            }
        }
        access.answer(&search)
    }
}

impl<W: WorkerPorts> Access<'_, W> {
    fn answer(&mut self, search: &Search) -> Result<(), WorkerError> {
        let request = &search.request;
        let answer = self.ctx.find_owners(search)?;
        if request.forget && !answer.places.is_empty() {
            let journals: BTreeSet<_> = answer.places.iter().map(|place| place.journal).collect();
            if !self.torn.is_prepared || !journals.iter().all(|id| self.ctx.may_write(*id)) {
                let what = "no transaction can be written now: the producer is being replaced, or partitions are not ready yet; nothing is forgotten: \
                            retry";
                request.answer.send(Err(RequestError::Unavailable(what.to_owned()))).ok();
                return Ok(());
            }
            self.forget(search, &journals, &answer.places)?;
        }
        // The requester may have timed out and closed the channel.
        request.answer.send(Ok(answer)).ok();
        Ok(())
    }

    /// Forgetting an id is a transaction of its own: its record in the journals that have it and unchanged offsets, committed together.
    fn forget(
        &mut self,
        search: &Search,
        journals: &BTreeSet<PartitionId>,
        places: &[OwnerPlace],
    ) -> Result<(), WorkerError> {
        let Access { ctx, committer, source, .. } = self;
        let identity = search.request.identity;
        committer.transaction.begin(&mut committer.sink, || ctx.clock.elapsed())?;
        let mut waiting = Vec::new();
        for id in journals {
            // What writes to a journal commits an offset: otherwise no generation fences it.
            let Some(partition) = ctx.partitions.of_mut(*id).find(|it| it.is_located()) else { continue };
            committer.transaction.touch(partition.id, &mut partition.open).is_stated = true;
            if !partition.is_started {
                // It waits for a rejected record, and is part of this transaction.
                partition.is_started = true;
                waiting.push(partition.id);
            }
            if let Some(journal) = ctx.journals.get_mut(*id) {
                let forgotten = ForgetRecord { hash: ctx.options.hash, identities: vec![identity] };
                journal.open.forgotten = Some(forgotten);
                journal.open.found = search.found(*id);
            }
        }
        committer.commit(ctx, source)?;
        for id in waiting {
            ctx.partitions.get_mut(id).into_iter().for_each(|partition| partition.is_started = false);
        }
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        tracing::info!(%identity, places = places.join(", "), "id forgotten");
        Ok(())
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Whether a transaction of this journal can be written: the position of a partition is known. It may wait for a rejected record.
    fn may_write(&self, journal: JournalId) -> bool {
        self.journals.get(journal).is_some_and(Journal::is_running)
            && self.partitions.of(journal).any(Partition::is_located)
    }

    /// The windows whose stored owners have to be read to forget an id: those of a journal with an owner, if they evict owners.
    pub(crate) fn windows_to_search(&self, request: &Request) -> Result<Vec<WindowId>, StoreError> {
        let key = self.store.positions().key(request.identity);
        let mut all = Vec::new();
        if !request.forget || self.options.limits.when_full != Overflow::Evict {
            return Ok(all);
        }
        for (id, windows) in self.requested(request).filter_map(|it| Some((it.id, it.settled()?))) {
            let mut is_found = false;
            for (kind, window) in windows.iter() {
                let owners = Stored { store: &self.store, window: kind.window(id), is_partial: false };
                is_found |= !window.owners(&key, &owners)?.is_empty();
            }
            all.extend(self.options.kinds.windows_of(id).into_iter().filter(|_| is_found));
        }
        Ok(all)
    }

    /// The journals in which an id of the requested partition can be.
    fn requested(&self, request: &Request) -> impl Iterator<Item = &Journal> + use<'_, W> {
        let only = request.partition.map(|only| self.options.journal_of(only));
        self.journals.iter().filter(move |journal| only.is_none_or(|only| only == journal.id))
    }

    fn find_owners(&self, search: &Search) -> Result<Answer, StoreError> {
        let (mut answer, key) = (Answer::default(), self.store.positions().key(search.request.identity));
        let only = search.request.partition;
        let is_requested = |id: &PartitionId| only.is_none_or(|only| only == *id);
        for journal in self.requested(&search.request) {
            let members = self.partitions.of(journal.id).map(|it| it.id).filter(is_requested);
            let Some(windows) = journal.settled() else {
                answer.not_ready.extend(members);
                continue;
            };
            answer.looked_into.extend(members);
            for (kind, window) in windows.iter() {
                let places = self.places_of(kind.window(journal.id), window, &key)?;
                // Which partition has an id that is in a filter is not known.
                let counts = |place: &OwnerPlace| place.partition.is_none_or(|id| is_requested(&id));
                answer.places.extend(places.into_iter().filter(counts));
            }
        }
        if self.options.is_topic_wide() {
            // Between the join and the assignment the worker has none of its partitions.
            let unassigned = self.known_partitions().filter(|id| self.partitions.get(*id).is_none());
            answer.not_ready.extend(unassigned.filter(is_requested));
        }
        Ok(answer)
    }

    fn places_of(
        &self,
        window_id: WindowId,
        window: &Window,
        key: &IndexKey,
    ) -> Result<Vec<OwnerPlace>, StoreError> {
        let name = self.options.kinds.name_of(window_id.kind());
        let place = |at: Option<Coordinates>, time_ms, part| OwnerPlace {
            journal: window_id.journal(),
            partition: at.map(|at| at.partition),
            kind: name.map(str::to_owned),
            offset: at.map(|at| at.offset),
            time_ms,
            part,
        };
        let sealed = sealed_in(&self.store, window_id, window, key)?;
        let unsealed =
            window.owners(key, &Stored { store: &self.store, window: window_id, is_partial: false })?;
        let unsealed = unsealed.into_iter().map(|(_, owner)| (owner.at, owner.time_ms));
        let exact = sealed.owners.iter().map(|owner| (owner.at, owner.time_ms)).chain(unsealed);
        let exact = exact.filter(|(_, time_ms)| window.needs(*time_ms));
        let in_filter = sealed.filters.first().map(|(since_ms, _)| place(None, *since_ms, WindowPart::Bloom));
        Ok(exact.map(|(at, time_ms)| place(Some(at), time_ms, WindowPart::Exact)).chain(in_filter).collect())
    }
}
