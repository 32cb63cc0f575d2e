//! A raw log, a clean topic, a state topic, two local stores, and a process that can crash.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use dedupd::dedupe::{
    Block, Coordinates, Digest, HashKind, Identity, IndexKey, KindId, Offset, Owner, Positions, StampedOwner,
    StoredOwner, StreamTime, TimeSource, Verdict, Window, WindowLimits,
};

use super::auditor::Auditor;
use super::local::Local;

/// How the process treats owners in local state at or beyond the committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The rule of dedupd: they are claims.
    Claims,
    /// Wrong: state ahead of the committed offset is trusted, and later records with these ids are duplicates.
    Trusted,
    /// Wrong where records can vanish: a record is a duplicate unless it is the owner itself.
    BareOwner,
}

/// How a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    Abort,
    CrashBeforeStore,
    CrashBeforeCommit,
    CrashAfterCommit,
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub rule: Rule,
    pub exact_ms: i64,
    pub max_ids: u64,
    /// The window is a table of `max_ids` slots that overwrites the oldest.
    pub evicts: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Raw {
    pub id: u8,
    pub timestamp: Option<i64>,
    /// False if the record was compacted away.
    pub exists: bool,
}

/// An entry of the state topic: its section and its block.
#[derive(Debug)]
struct Entry {
    first: Offset,
    next: Offset,
    time_ms: i64,
    block: Vec<u8>,
}

/// The running process. Dropping it is a crash.
struct Process {
    window: Window,
    time: StreamTime,
    /// The clock of the window.
    horizon_ms: i64,
    next: Offset,
    /// Records below this offset were committed before the group was rewound.
    skip_below: Offset,
    /// Unconfirmed owners, which a wrong rule trusts.
    unconfirmed: Vec<StoredOwner>,
}

pub struct World {
    settings: Settings,
    pub raw: Vec<Raw>,
    state: Vec<Entry>,
    committed: Offset,
    /// Stream time and the clock of the window at the last commit.
    committed_time: i64,
    horizon_ms: i64,
    position: Offset,
    /// After a rewind that processes records again, the next transaction writes an entry even without an
    /// id: it undoes the owners beyond its first offset for every later reader.
    rewound: bool,
    locals: [Local; 2],
    here: usize,
    process: Option<Process>,
    pub auditor: Auditor,
    pub seen: Seen,
}

/// Counts of events, so that a test can assert that they happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen {
    pub duplicates: u64,
    pub retries: u64,
    pub claims: u64,
    pub stale: u64,
    pub undone: u64,
    pub expired: u64,
    pub evicted: u64,
    pub restored: u64,
}

pub fn identity(id: u8) -> Identity {
    Identity([id; 16])
}

impl World {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            raw: Vec::new(),
            state: Vec::new(),
            committed: 0,
            committed_time: 0,
            horizon_ms: 0,
            position: 0,
            rewound: false,
            locals: [Local::default(), Local::default()],
            here: 0,
            process: None,
            auditor: Auditor::new(settings),
            seen: Seen::default(),
        }
    }

    pub fn crash(&mut self) {
        self.process = None;
    }

    /// Moves the process to the other host, which has the other local store.
    pub fn move_host(&mut self) {
        self.process = None;
        self.here = 1 - self.here;
    }

    pub fn wipe(&mut self) {
        self.process = None;
        self.locals[self.here] = Local::default();
    }

    /// Compacts away a record that is not committed.
    pub fn compact(&mut self, place: usize) {
        self.process = None;
        let open = usize::try_from(self.committed).unwrap()..self.raw.len();
        if let Some(at) = open.clone().nth(place % open.len().max(1)) {
            self.raw[at].exists = false;
        }
    }

    /// Rewinds the group, which loses the checkpoint: stream time is that of the last entry. With `skip`, records that were committed
    /// are skipped.
    pub fn rewind(&mut self, back: u64, skip: bool) {
        self.process = None;
        self.auditor.rewind();
        self.committed = self.committed.saturating_sub(back);
        self.committed_time = self.state.last().map_or(0, |entry| entry.time_ms);
        self.horizon_ms = 0;
        if !skip {
            self.position = self.committed;
            self.rewound = true;
            self.auditor.forget_from(self.committed);
        }
    }

    /// Restores the window from local state and the state topic.
    fn start(&mut self) -> Process {
        let held = self.committed.max(self.position);
        let local = &mut self.locals[self.here];
        let limits = WindowLimits {
            exact: Duration::from_millis(self.settings.exact_ms.unsigned_abs()),
            max_ids: self.settings.max_ids,
            time: TimeSource::Record,
            bloom: None,
        };
        let new = if self.settings.evicts { Window::evicting } else { Window::new };
        let mut window = new(limits, Positions::keyed([7; 16]));
        window.reserve(20);
        window.set_horizon(self.horizon_ms);
        if local.is_undone {
            *local = Local::default();
        }
        let truncated = local.truncate(local.confirmed);
        self.seen.restored += local.load(&mut window);
        for entry in &self.state[local.state_next..] {
            if entry.first < local.covered {
                self.seen.undone += local.undo(&mut window, entry.first);
            }
            let number = window.next_number();
            let restored = window.restore(&Block::decode(&entry.block).unwrap().owners);
            self.seen.restored += restored.len() as u64;
            local.append(number, &restored);
            local.covered = entry.next;
        }
        if local.covered > held {
            self.seen.undone += local.undo(&mut window, held);
            local.is_undone = true;
        }
        (local.confirmed, local.state_next) = (window.next_number(), self.state.len());
        let mut time = StreamTime::new(TimeSource::Record);
        time.set(self.committed_time);
        let unconfirmed: Vec<_> = truncated.into_iter().filter(|owner| owner.at.offset >= held).collect();
        for owner in &unconfirmed {
            self.seen.claims += 1;
            window.claim(owner.identity.unwrap(), owner.at);
        }
        Process {
            window,
            time,
            horizon_ms: self.horizon_ms,
            next: self.committed,
            skip_below: self.position,
            unconfirmed,
        }
    }

    /// Runs one transaction of at most `size` records. The client delivers `again` earlier records a second time.
    pub fn batch(&mut self, size: u64, again: u64, end: End) {
        let mut process = self.process.take().unwrap_or_else(|| self.start());
        let from = process.next.saturating_sub(again);
        let to = (process.next + size).min(self.raw.len() as u64);
        // Skipped records were committed in earlier entries, which must not be undone.
        let first = process.next.max(process.skip_below);
        let keys: Vec<(Offset, IndexKey)> = (from..to)
            .filter(|at| self.raw[usize::try_from(*at).unwrap()].exists)
            .map(|at| (at, process.window.key(identity(self.raw[usize::try_from(at).unwrap()].id))))
            .collect();
        let mut forwarded = HashSet::new();
        for (at, key) in keys {
            if at < process.next || at < process.skip_below {
                self.seen.stale += 1;
            } else if self.decide(&mut process, at, &key) {
                forwarded.insert(at);
            }
            process.next = process.next.max(at + 1);
        }
        process.next = process.next.max(to);
        if end == End::CrashBeforeStore {
            return;
        }
        self.finish(process, first, &forwarded, end);
    }

    fn decide(&mut self, process: &mut Process, offset: Offset, key: &IndexKey) -> bool {
        let record = self.raw[usize::try_from(offset).unwrap()];
        let Process { window, time, unconfirmed, .. } = process;
        let at = Coordinates { partition: 0, offset };
        time.observe(record.timestamp, super::NOW);
        let mut verdict = match window.verdict(at, time.record(), key, &self.locals[self.here]) {
            Ok(verdict) => verdict,
            Err(what) => {
                self.auditor.violation(what);
                Verdict::New
            }
        };
        let this = Owner { at, time_ms: time.ms(), identity: key.identity, digest: Digest::NONE };
        if let Some(claimed) = unconfirmed.iter().find(|it| it.identity == Some(key.identity)) {
            let owner = Owner { at: claimed.at, ..this };
            match self.settings.rule {
                Rule::Claims => {}
                Rule::BareOwner if owner.at == at => {}
                Rule::Trusted | Rule::BareOwner => verdict = Verdict::Duplicate { owner },
            }
        }
        match verdict {
            Verdict::Duplicate { owner } => {
                self.seen.duplicates += 1;
                if self.raw[usize::try_from(owner.at.offset).unwrap()].id != record.id || owner.at == at {
                    self.auditor.violation(format!("{at} is reported as a duplicate of {owner:?}"));
                }
                return false;
            }
            Verdict::Retry => self.seen.retries += 1,
            Verdict::New => {}
        }
        let last_ms = window.pending().last().map_or(window.latest_ms(), |last| last.stamp_ms);
        window.admit(StampedOwner { owner: this, stamp_ms: last_ms.max(this.time_ms) }, key);
        true
    }

    /// Writes to the store, then to Kafka, then to memory.
    fn finish(&mut self, mut process: Process, first: Offset, forwarded: &HashSet<Offset>, end: End) {
        let Process { window, time, horizon_ms, next, .. } = &mut process;
        let local = &mut self.locals[self.here];
        let writes_entry = !window.pending().is_empty() || (self.rewound && first < *next);
        let owners: Vec<Owner> = window.pending().iter().map(|pending| pending.owner).collect();
        local.append(window.next_number(), window.pending());
        if end == End::CrashBeforeCommit {
            return;
        }
        if end == End::Abort {
            local.truncate(window.next_number());
            window.abort();
            time.undo();
            *next = self.committed;
            self.process = Some(process);
            return;
        }
        if writes_entry {
            let block = Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners }.encode();
            self.state.push(Entry { first, next: *next, time_ms: time.ms(), block });
            self.rewound = false;
        }
        for at in first..*next {
            let record = self.raw[usize::try_from(at).unwrap()];
            if record.exists {
                self.auditor.committed(at, record, forwarded.contains(&at));
            }
        }
        if writes_entry {
            self.auditor.entry();
        }
        self.committed = *next;
        self.position = self.position.max(*next);
        (self.committed_time, self.horizon_ms) = (time.ms(), *horizon_ms);
        if end == End::CrashAfterCommit {
            return;
        }
        time.commit();
        let before = window.ids();
        let needed = window.commit();
        self.seen.expired += before - window.ids();
        self.seen.evicted += window.take_evicted();
        // No repair undoes it any more: the next commit drops what has expired.
        *horizon_ms = (*horizon_ms).max(time.ms());
        window.set_horizon(*horizon_ms);
        local.expire(needed);
        (local.confirmed, local.state_next) = (window.next_number(), self.state.len());
        if writes_entry {
            (local.covered, local.is_undone) = (*next, false);
        }
        self.process = Some(process);
    }

    /// Runs the process to the end of the log, and returns the violations.
    pub fn judge(mut self) -> (Vec<String>, Seen) {
        self.process = None;
        while self.committed < self.raw.len() as u64 {
            self.batch(4, 0, End::Commit);
        }
        (self.auditor.judge(&self.raw), self.seen)
    }
}

/// The sum of the counts of many worlds.
#[derive(Default)]
pub struct Total(Cell<Seen>);

impl Total {
    pub fn add(&self, seen: &Seen) {
        let sum = self.0.take();
        self.0.set(Seen {
            duplicates: sum.duplicates + seen.duplicates,
            retries: sum.retries + seen.retries,
            claims: sum.claims + seen.claims,
            stale: sum.stale + seen.stale,
            undone: sum.undone + seen.undone,
            expired: sum.expired + seen.expired,
            evicted: sum.evicted + seen.evicted,
            restored: sum.restored + seen.restored,
        });
    }

    pub fn get(&self) -> Seen {
        self.0.take()
    }
}
