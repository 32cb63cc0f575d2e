//! What the parts that repair and start partitions use.

use crate::pipeline::commit::Committer;
use crate::pipeline::context::Context;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::start_bounds::StartBounds;
use crate::pipeline::torn::producer::ProducerState;

/// The parts of a worker that repair and start its partitions, and the source, which the records of a chunk borrow.
///
/// Large because each step of a repair and of a start is one method, in the file of that step.
pub(crate) struct Access<'a, W: WorkerPorts> {
    pub(crate) ctx: &'a mut Context<W>,
    pub(crate) committer: &'a mut Committer<W>,
    /// The transactional producer, and what earlier producers left open.
    pub(crate) torn: &'a mut ProducerState,
    pub(crate) start_bounds: &'a mut StartBounds,
    pub(crate) source: &'a W::Source,
}
