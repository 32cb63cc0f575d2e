//! Requests of the admin API to a running worker, answered between two transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::control::{Answer, OwnerPlace, Request, RequestError, WindowPart};
use crate::dedupe::{ForgetRecord, Identity, IndexKey, Offset, PartitionId, Window, WindowId};
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::loading::LoadSlice;
use crate::pipeline::partition::sealed::sealed_in;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::topic::has_settled_state;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::worker::search::{Search, SliceLimit, read_slice, search_new};
use crate::ports::{Store, StoreError};

/// Time to read the owners of the commit that precedes forgetting an id.
const LAST_SLICE: Duration = Duration::from_secs(1);
/// The owner of an identity that only a filter contains: not known, or there is none.
const NO_OWNER: Offset = Offset::MAX;

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

    /// Whether a request waits for its next slice.
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Answers one request, if there is any, or continues with it. `can_write` is whether a transaction can be written.
    pub(crate) fn answer_request<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        can_write: bool,
    ) -> Result<(), WorkerError> {
        let now = access.ctx.clock.elapsed();
        let next = || self.requests.as_ref()?.try_recv().ok().map(|request| Search::new(request, now));
        let Some(mut search) = self.search.take().or_else(next) else { return Ok(()) };
        if search.is_abandoned(now) {
            return Ok(());
        }
        let limit = &access.ctx.options.partition_limit;
        let (raw, count) = (&access.ctx.options.raw, limit.raw().max(limit.count()));
        if let Some(partition) = search.request.partition.filter(|partition| *partition >= count) {
            let what = format!("partition {partition} does not exist: {raw} has {count}");
            search.request.answer.send(Err(RequestError::Invalid(what))).ok();
            return Ok(());
        }
        let LoadSlice { ids, time, .. } = access.ctx.options.load_slice;
        if !read_slice(access.ctx, &mut search, SliceLimit { ids: ids.max(1), until: now + time })? {
            self.search = Some(search);
            return Ok(());
        }
        if search.request.forget {
            // Pending records have no committed owner yet.
            access.committer.commit(access.ctx, access.source)?;
            let now = access.ctx.clock.elapsed();
            let until = now + LAST_SLICE;
            // The commit may have taken longer than the requester waits.
            if search.is_abandoned(now) {
                return Ok(());
            }
            if !search_new(access.ctx, &mut search, SliceLimit { ids: u64::MAX, until })? {
                self.search = Some(search);
                return Ok(());
            }
        }
        answer(access, &search, can_write)
    }
}

fn answer<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    search: &Search,
    can_write: bool,
) -> Result<(), WorkerError> {
    let request = &search.request;
    let answer = find_owners(access.ctx, search)?;
    if request.forget && !answer.places.is_empty() {
        // In topic scope nothing is committed before the state of all partitions is there.
        if !can_write || access.ctx.topic.as_ref().is_some_and(|topic| !topic.is_open) {
            let what = "no transaction can be written now: the producer is being replaced, or partitions are not ready yet; nothing is forgotten: \
                        retry";
            request.answer.send(Err(RequestError::Unavailable(what.to_owned()))).ok();
            return Ok(());
        }
        let owners = all_owners(&access.ctx.options, search, &answer.places);
        forget(access, (request.identity, &owners), &answer.places)?;
    }
    // The requester may have timed out and closed the channel.
    request.answer.send(Ok(answer)).ok();
    Ok(())
}

/// Forgetting an id is a transaction of its own: its record in the state topic and the unchanged offsets, committed together.
fn forget<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    (identity, owners): (Identity, &BTreeMap<PartitionId, BTreeSet<Offset>>),
    places: &[OwnerPlace],
) -> Result<(), WorkerError> {
    access.committer.transaction.begin(&mut access.committer.sink, || access.ctx.clock.elapsed())?;
    let now = access.ctx.clock.elapsed();
    // A partition that waits takes part in the transaction, and continues to wait. If the transaction fails, all of them are located again.
    let waiting = access.ctx.partitions.ids(|p| !p.is_running() && owners.contains_key(&p.id));
    for id in &waiting {
        let state = access.ctx.partitions.locating_mut(*id).and_then(|locating| locating.state.take());
        if let Some((partition, state)) = access.ctx.partitions.get_mut(*id).zip(state) {
            partition.run(state, true);
        }
    }
    for (id, running) in access.ctx.partitions.running_mut() {
        let Some(owners) = owners.get(&id) else { continue };
        let state = &mut running.state;
        let forgotten = ForgetRecord {
            hash: access.ctx.options.hash,
            partition: id,
            at: state.committed,
            owners: owners.iter().map(|owner| (*owner, identity)).collect(),
        };
        access.committer.transaction.touch(id, &mut state.open).forgotten = Some(forgotten);
    }
    access.committer.commit(access.ctx, access.source)?;
    for id in waiting {
        access.ctx.partitions.get_mut(id).into_iter().for_each(|partition| partition.relocate(now));
    }
    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
    tracing::info!(%identity, places = places.join(", "), "id forgotten");
    Ok(())
}

/// The windows whose stored owners have to be read to forget an id: those of a partition with an owner, if they evict owners.
pub(crate) fn windows_to_search<W: WorkerPorts>(
    ctx: &Context<W>,
    request: &Request,
) -> Result<Vec<WindowId>, StoreError> {
    let key = ctx.store.positions().key(request.identity);
    let mut all = Vec::new();
    if !request.forget || ctx.options.limits.when_full != Overflow::Evict {
        return Ok(all);
    }
    for (partition, state) in requested(ctx, request).filter_map(|p| Some((p.id, settled(p)?))) {
        let mut is_found = false;
        for (kind, window) in state.windows.iter() {
            let owners = Stored { store: &ctx.store, window: kind.window(partition), is_copy: false };
            is_found |= !window.owners(&key, &owners)?.is_empty();
        }
        all.extend(ctx.options.kinds.windows_of(partition).into_iter().filter(|_| is_found));
    }
    Ok(all)
}

fn requested<'a, W: WorkerPorts>(
    ctx: &'a Context<W>,
    request: &Request,
) -> impl Iterator<Item = &'a Partition> + use<'a, W> {
    let only = request.partition;
    ctx.partitions.iter().filter(move |p| only.is_none_or(|only| only == p.id))
}

/// The state by which the records of all partitions are decided: also that of a partition that waits for a rejected record.
fn settled(partition: &Partition) -> Option<&DedupeState> {
    partition.state().filter(|_| has_settled_state(partition))
}

fn find_owners<W: WorkerPorts>(ctx: &Context<W>, search: &Search) -> Result<Answer, StoreError> {
    let (mut answer, key) = (Answer::default(), ctx.store.positions().key(search.request.identity));
    for partition in requested(ctx, &search.request) {
        match settled(partition) {
            Some(state) => {
                answer.looked_into.push(partition.id);
                for (kind, window) in state.windows.iter() {
                    answer.places.extend(places(ctx, kind.window(partition.id), window, &key)?);
                }
            }
            None => answer.not_ready.push(partition.id),
        }
    }
    if ctx.topic.is_some() {
        // Between the join and the assignment the worker has none of its partitions.
        let is_requested = |id: &PartitionId| search.request.partition.is_none_or(|only| only == *id);
        let unassigned = ctx.known_partitions().filter(|id| ctx.partitions.get(*id).is_none());
        answer.not_ready.extend(unassigned.filter(is_requested));
    }
    Ok(answer)
}

fn places<W: WorkerPorts>(
    ctx: &Context<W>,
    window_id: WindowId,
    window: &Window,
    key: &IndexKey,
) -> Result<Vec<OwnerPlace>, StoreError> {
    let (partition, name) = (window_id.partition(), ctx.options.kinds.name_of(window_id.kind()));
    let place = |offset, time_ms, part| OwnerPlace {
        partition,
        kind: name.map(str::to_owned),
        offset,
        time_ms,
        part,
    };
    let sealed = sealed_in(&ctx.store, window_id, window, key)?;
    let unsealed = window.owners(key, &Stored { store: &ctx.store, window: window_id, is_copy: false })?;
    let exact = sealed.owners.iter().chain(&unsealed);
    let in_filter = sealed.since_ms.map(|since_ms| place(None, since_ms, WindowPart::Bloom));
    let places = exact.map(|(owner, time_ms)| place(Some(*owner), *time_ms, WindowPart::Exact));
    Ok(places.chain(in_filter).collect())
}

/// The owners of an identity in the partitions of these places: the ones in `places`, and older ones that exist
/// only in the store, because a window evicted them. A larger window would load them from there.
fn all_owners(
    options: &WorkerOptions,
    search: &Search,
    places: &[OwnerPlace],
) -> BTreeMap<PartitionId, BTreeSet<Offset>> {
    let mut owners: BTreeMap<PartitionId, BTreeSet<Offset>> = BTreeMap::new();
    for place in places {
        owners.entry(place.partition).or_default().insert(place.offset.unwrap_or(NO_OWNER));
    }
    for (partition, owners) in &mut owners {
        let windows = options.kinds.windows_of(*partition);
        let found = windows.into_iter().filter_map(|window| search.found(window));
        owners.extend(found.flat_map(|found| &found.owners));
    }
    owners
}
