//! What every part of a worker uses.

use crate::pipeline::limits::shortened::WindowLimiter;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::progress::Progress;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::time::Time;

/// The partitions of a worker, their state in the local store and in the state topic, and the settings.
///
/// Large because all parts of a worker use it: one field for each thing that more than one of them needs.
pub(crate) struct Context<W: WorkerPorts> {
    pub(crate) partitions: Partitions,
    /// The limits in force on the windows of the partitions.
    pub(crate) limits: WindowLimiter,
    pub(crate) log: W::Log,
    pub(crate) store: W::Store,
    pub(crate) clock: W::Clock,
    pub(crate) time: Time,
    pub(crate) options: WorkerOptions,
    pub(crate) report: WorkerReport,
    /// The progress of the worker, for the supervisor.
    pub(crate) progress: Progress,
}

impl<W: WorkerPorts> Context<W> {
    /// Without partitions.
    pub fn new(
        (log, store): (W::Log, W::Store),
        clock: W::Clock,
        options: WorkerOptions,
        report: WorkerReport,
    ) -> Self {
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
