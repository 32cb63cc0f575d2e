//! What nobody tells dedupd and it has to ask for: topics that grow or are created anew, and where the raw
//! logs begin. On one thread with clients of its own, so that no worker waits for an answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::assembly::settings;
use super::supervisor::pause;
use super::{Ended, Service};
use crate::cli::Exit;
use crate::clock;
use crate::kafka::{LogStarts, LookError, TopicWatch, Topology};
use crate::metrics::Status;
use crate::pipeline::Reach;

/// How often the topics are looked at. Until the next look a topic created anew would pass for the old one.
const TOPICS: Duration = Duration::from_secs(5);
/// How often is asked where logs begin. Retention deletes whole segments, every few minutes at most.
const STARTS: Duration = Duration::from_secs(30);
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
        starts: LogStarts::new(&settings).map_err(|failed| Ended::new(Exit::Operator, failed.what))?,
        status: Arc::clone(&service.status),
        reach: reach.clone(),
        owned: BTreeSet::new(),
        looked: None,
        asked: None,
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
    starts: LogStarts,
    status: Arc<Status>,
    reach: Reach,
    /// The partitions of this process at the last look.
    owned: BTreeSet<u32>,
    /// When the topics were looked at, and the logs were asked about.
    looked: Option<Instant>,
    asked: Option<Instant>,
    /// Nobody answers, and the log says so.
    told: bool,
}

impl Watch {
    fn turn(&mut self) -> Result<(), Ended> {
        let workers = self.status.workers();
        let owned = workers.iter().flat_map(|worker| &worker.partitions).map(|it| it.partition).collect();
        let come = !BTreeSet::is_subset(&owned, &self.owned);
        self.owned = owned;
        // The group has heard of a growth before this look was due.
        let waits = self.owned.iter().any(|partition| !self.reach.covers(*partition));
        if waits || is_due(&mut self.looked, TOPICS) {
            self.look()?;
        }
        if come || is_due(&mut self.asked, STARTS) {
            let answer = self.starts.of(self.owned.iter().copied(), ANSWER);
            let known = answer.map(|starts| self.status.note_log_starts(starts));
            self.told("dedupd_raw_start_offset keeps its last value", known.map_err(|failed| failed.what));
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), Ended> {
        match self.topics.look() {
            Ok(sight) => {
                sight.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                self.reach.raise(sight.reach);
                self.told("", Ok(()));
                Ok(())
            }
            Err(LookError::Unanswered(what)) => {
                self.told("whether topics have changed is not known", Err(what));
                Ok(())
            }
            Err(LookError::LeftBehind(what)) => Err(Ended::new(Exit::StartUp, what)),
            Err(LookError::Replaced(what)) => Err(Ended::new(Exit::Operator, what)),
        }
    }

    /// Not our trouble to report while the workers have the same; but once, and not every time.
    fn told(&mut self, hence: &str, result: Result<(), String>) {
        if let Err(what) = &result
            && !self.told
        {
            tracing::warn!("{what}; {hence}");
        }
        self.told = result.is_err();
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
