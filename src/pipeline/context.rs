//! What every part of a worker uses.

use crate::pipeline::limits::shortened::WindowLimiter;
use crate::pipeline::options::Options;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::progress::Progress;
use crate::pipeline::report::Report;
use crate::pipeline::time::Time;
use crate::pipeline::world::World;

/// The partitions of a worker, their state in the local store and in the state topic, and the settings.
pub(crate) struct Context<W: World> {
    pub(crate) partitions: Partitions,
    /// The limits in force on the windows of the partitions.
    pub(crate) limits: WindowLimiter,
    pub(crate) log: W::Log,
    pub(crate) store: W::Store,
    pub(crate) clock: W::Clock,
    pub(crate) time: Time,
    pub(crate) options: Options,
    pub(crate) report: Report,
    /// The progress of the worker, for the supervisor.
    pub(crate) progress: Progress,
}

impl<W: World> Context<W> {
    /// Without partitions.
    pub fn new((log, store): (W::Log, W::Store), clock: W::Clock, options: Options, report: Report) -> Self {
        Self {
            partitions: Partitions::default(),
            limits: WindowLimiter::default(),
            log,
            store,
            time: Time::start(&clock),
            clock,
            options,
            report,
            progress: Progress::default(),
        }
    }
}
