//! What nobody tells dedupd and it has to ask for: topics that grow or are created anew, where the raw logs
//! begin, upstream transactions that hang. On one thread with clients of its own, so that no worker waits for an answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::assembly::settings;
use super::hanging::Hanging;
use super::supervisor::pause;
use super::{Ended, Service};
use crate::cli::Exit;
use crate::clock::{self, Clock, SystemClock};
use crate::kafka::{LogEnds, LookError, TopicWatch, Topology};
use crate::metrics::Status;
use crate::pipeline::Reach;
use crate::ports::Failure;

/// How often the topics are looked at. Until the next look a topic created anew would pass for the old one.
const TOPICS: Duration = Duration::from_secs(5);
/// How often is asked where logs begin. Retention deletes whole segments, every few minutes at most.
const STARTS: Duration = Duration::from_secs(30);
/// How often is asked where they end.
const ENDS: Duration = Duration::from_secs(10);
/// How long an answer about a log may take; well below the time that a stop may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How often is looked whether partitions have come.
const LOOK: Duration = Duration::from_secs(1);

/// Watches until `stop` is set, or until it sees what has to end the process.
pub(super) fn watch(
    service: &Service,
    start: &Topology,
    reach: &Reach,
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<Result<(), Ended>>, Ended> {
    let settings = settings(&service.config, 0);
    let mut watch = Watch {
        topics: TopicWatch::new(&settings, start, service.config.topics.create)?,
        ends: LogEnds::new(&settings).map_err(|failed| Ended::new(Exit::Operator, failed.what))?,
        hanging: Hanging::new(&settings.raw, &settings.bootstrap_servers),
        clock: SystemClock::start(),
        status: Arc::clone(&service.status),
        reach: reach.clone(),
        owned: BTreeSet::new(),
        looked: None,
        started: None,
        ended: None,
        told: false,
    };
    let stop = Arc::clone(stop);
    let work = move || {
        while !stop.load(Ordering::Acquire) {
            watch.turn()?;
            pause(LOOK, &stop);
        }
        Ok(())
    };
    std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(work)
        .map_err(|e| Ended::failed(format!("cannot start a thread: {e}; raise the limit on processes")))
}

struct Watch {
    topics: TopicWatch,
    ends: LogEnds,
    hanging: Hanging,
    clock: SystemClock,
    status: Arc<Status>,
    reach: Reach,
    /// The partitions of this process at the last look.
    owned: BTreeSet<u32>,
    /// When the topics were looked at, and the logs were asked about.
    looked: Option<Instant>,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// Nobody answers, and the log says so.
    told: bool,
}

impl Watch {
    /// Asks what is due. Not our trouble to report that nobody answers while the workers have the same; but once.
    fn turn(&mut self) -> Result<(), Ended> {
        match self.ask() {
            Ok(()) => self.told = false,
            Err(LookError::Unanswered(what)) => {
                if !self.told {
                    tracing::warn!(
                        "{what}; until it is answered, changes of the topics are not seen, and \
                         dedupd_raw_start_offset and dedupd_raw_hanging_seconds keep their last values"
                    );
                }
                self.told = true;
            }
            Err(LookError::LeftBehind(what)) => return Err(Ended::new(Exit::StartUp, what)),
            Err(LookError::Replaced(what)) => return Err(Ended::new(Exit::Operator, what)),
        }
        Ok(())
    }

    /// Ends with the first question that is not answered: a stop waits for it.
    fn ask(&mut self) -> Result<(), LookError> {
        let workers = self.status.workers();
        let owned = workers.iter().flat_map(|worker| &worker.partitions).map(|it| it.partition).collect();
        let come = !BTreeSet::is_subset(&owned, &self.owned);
        self.owned = owned;
        // The group has heard of a growth before this look was due.
        let waits = self.owned.iter().any(|partition| !self.reach.covers(*partition));
        if is_due(&mut self.looked, TOPICS) || waits {
            let sight = self.topics.look()?;
            sight.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            self.reach.raise(sight.reach);
        }
        let unanswered = |failed: Failure| LookError::Unanswered(failed.what);
        if is_due(&mut self.started, STARTS) || come {
            let starts = self.ends.first(self.owned.iter().copied(), ANSWER).map_err(unanswered)?;
            self.status.note_log_starts(starts);
        }
        if is_due(&mut self.ended, ENDS) {
            let ends = self.ends.last(self.owned.iter().copied(), ANSWER).map_err(unanswered)?;
            let now = self.clock.elapsed();
            let standing = self.hanging.seen(&ends, now);
            self.hanging.tell(now);
            self.status.note_hanging(standing, self.hanging.notes(now));
        }
        Ok(())
    }
}

/// Whether so long has passed since `last`, which then is now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= every);
    if due {
        *last = Some(clock::monotonic());
    }
    due
}
