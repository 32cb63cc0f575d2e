//! The ports of a worker.

use crate::clock::Clock;
use crate::pipeline::journal::loading::LocalRead;
use crate::ports::{
    GroupMember, LogReads, ProducerLife, Sink, Source, StateLog, Store, StoreError, WrittenEnds,
};

/// What a worker is connected to.
pub struct Ports<W: WorkerPorts> {
    /// See [`WorkerPorts::Source`].
    pub source: W::Source,
    /// See [`WorkerPorts::Sink`].
    pub sink: W::Sink,
    /// See [`WorkerPorts::Log`].
    pub log: W::Log,
    /// See [`WorkerPorts::Store`].
    pub store: W::Store,
    /// See [`WorkerPorts::Clock`].
    pub clock: W::Clock,
}

/// The types of a worker's ports, as one type parameter.
pub trait WorkerPorts {
    /// The raw topic, and the membership of the group.
    type Source: Source + GroupMember;
    /// The producer, and its transaction.
    type Sink: ProducerLife + Sink<Self::Source> + WrittenEnds;
    /// The reader of the state topic, and of the ends of all topics that transactions write to.
    type Log: StateLog + LogReads;
    /// The copy of the windows on the local disk.
    type Store: Store;
    /// Monotonic and wall time; the simulation has its own.
    type Clock: Clock;

    /// Runs these reads of local state. They are independent of each other: an implementation can use a thread for each.
    fn read_local(
        store: &Self::Store,
        clock: &Self::Clock,
        reads: &mut [LocalRead<'_>],
    ) -> Result<(), StoreError> {
        reads.iter_mut().try_for_each(|read| read.run(store, clock))
    }
}
