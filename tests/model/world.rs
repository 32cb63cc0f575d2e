//! A raw log, a clean topic, a state topic, two local stores, and a process that can crash.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use dedupd::dedupe::{
    Block, BlockView, HashKind, Identity, IndexKey, Offset, OwnerRun, Owners, Positions, Sequence,
    StoredOwner, TimeSource, Verdict, Window, WindowLimits,
};

use super::auditor::Auditor;

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

/// A local store. It survives its process but not a wipe, and may be old.
#[derive(Debug, Default)]
struct Local {
    /// Each with the number of its first owner.
    blocks: Vec<(Sequence, Block)>,
    confirmed: Offset,
    state_next: usize,
}

impl Owners for Local {
    type Error = String;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, String> {
        let mut of_blocks = self.blocks.iter().rev();
        let found = of_blocks.find_map(|(first, block)| {
            block.entries.get(usize::try_from(number.checked_sub(*first)?).ok()?).map(stored)
        });
        found.ok_or_else(|| format!("owner {number} is live but in no block"))
    }
}

fn stored((offset, identity): &(Offset, Identity)) -> StoredOwner {
    StoredOwner { offset: *offset, identity: Some(*identity) }
}

impl Local {
    fn append(&mut self, block: &Block, number: Sequence) {
        self.truncate(block.first);
        self.blocks.push((number, block.clone()));
    }

    fn truncate(&mut self, from: Offset) -> Vec<(Offset, Identity)> {
        let mut gone = Vec::new();
        for (_, block) in &mut self.blocks {
            gone.extend(block.entries.extract_if(.., |(owner, _)| *owner >= from));
            block.next = block.next.min(from);
        }
        self.blocks.retain(|(_, block)| block.first < from);
        gone
    }

    fn expire(&mut self, first: Offset) {
        self.blocks.retain(|(_, block)| block.next > first);
    }

    /// Loads the owners below an offset.
    fn load(&self, window: &mut Window, below: Offset) -> u64 {
        let loaded = self.blocks.iter().map(|(number, block)| {
            let owners: Vec<_> = block.entries.iter().map(stored).collect();
            let (covered, times_ms) = (block.first..block.next, (block.time_first_ms, block.time_last_ms));
            window.load(&OwnerRun { covered, times_ms, number: *number, owners: &owners }, below)
        });
        loaded.sum()
    }
}

/// The running process. Dropping it is a crash.
struct Process {
    window: Window,
    next: Offset,
    /// Records below this offset were committed before the group was rewound.
    skip_below: Offset,
    /// Unconfirmed owners, which a wrong rule trusts.
    unconfirmed: Vec<(Offset, Identity)>,
}

pub struct World {
    settings: Settings,
    pub raw: Vec<Raw>,
    state: Vec<Vec<u8>>,
    committed: Offset,
    committed_time: i64,
    position: Offset,
    /// After a rewind that processes records again, the next transaction writes its block even without an
    /// id: the block invalidates the owners beyond it for every later reader.
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

    /// Rewinds the group, which loses the stream time of the commit. With `skip`, records that were committed
    /// are skipped.
    pub fn rewind(&mut self, back: u64, skip: bool) {
        self.process = None;
        self.auditor.rewind();
        self.committed = self.committed.saturating_sub(back);
        self.committed_time = 0;
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
        let confirmed = local.confirmed.min(held);
        let truncated = local.truncate(confirmed);
        self.seen.restored += local.load(&mut window, confirmed);
        for bytes in &self.state[local.state_next..] {
            let mut block = Block::decode(bytes).unwrap();
            if block.first < held {
                if block.first < window.next() {
                    window.truncate(block.first, local).unwrap();
                }
                let number = window.next_number();
                self.seen.restored += window.restore(&BlockView::verified(bytes).unwrap(), held).unwrap();
                block.entries.retain(|(owner, _)| *owner < held);
                block.next = block.next.min(held);
                local.append(&block, number);
            }
        }
        (local.confirmed, local.state_next) = (held, self.state.len());
        window.set_stream_time(self.committed_time);
        let unconfirmed: Vec<_> = truncated.into_iter().filter(|(owner, _)| *owner >= held).collect();
        for (owner, identity) in &unconfirmed {
            self.seen.claims += 1;
            window.claim(*identity, *owner);
        }
        Process { window, next: self.committed, skip_below: self.position, unconfirmed }
    }

    /// Runs one transaction of at most `size` records. The client delivers `again` earlier records a second time.
    pub fn batch(&mut self, size: u64, again: u64, end: End) {
        let mut process = self.process.take().unwrap_or_else(|| self.start());
        let from = process.next.saturating_sub(again);
        let to = (process.next + size).min(self.raw.len() as u64);
        // Skipped records were committed in earlier blocks, which must not be replaced.
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

    fn decide(&mut self, process: &mut Process, at: Offset, key: &IndexKey) -> bool {
        let record = self.raw[usize::try_from(at).unwrap()];
        process.window.observe(record.timestamp, super::NOW);
        let mut verdict = match process.window.verdict(at, key, &self.locals[self.here]) {
            Ok(verdict) => verdict,
            Err(what) => {
                self.auditor.violation(what);
                Verdict::New
            }
        };
        if let Some((owner, _)) =
            process.unconfirmed.iter().find(|(_, unconfirmed)| *unconfirmed == key.identity)
        {
            match self.settings.rule {
                Rule::Claims => {}
                Rule::BareOwner if *owner == at => {}
                Rule::Trusted | Rule::BareOwner => verdict = Verdict::Duplicate { owner: *owner },
            }
        }
        match verdict {
            Verdict::Duplicate { owner } => {
                self.seen.duplicates += 1;
                if self.raw[usize::try_from(owner).unwrap()].id != record.id || owner == at {
                    self.auditor.violation(format!("{at} is reported as a duplicate of {owner}"));
                }
                return false;
            }
            Verdict::Retry => self.seen.retries += 1,
            Verdict::New => {}
        }
        process.window.admit(at, key);
        true
    }

    /// Writes to the store, then to Kafka, then to memory.
    fn finish(&mut self, mut process: Process, first: Offset, forwarded: &HashSet<Offset>, end: End) {
        let local = &mut self.locals[self.here];
        let writes_block = !process.window.pending().is_empty() || (self.rewound && first < process.next);
        let blocks = if writes_block {
            process.window.blocks(HashKind::Xxh3, 0.into(), first..process.next, 3)
        } else {
            Vec::new()
        };
        let mut number = process.window.next_number();
        for block in &blocks {
            local.append(block, number);
            number += block.entries.len() as Sequence;
        }
        if end == End::CrashBeforeCommit {
            return;
        }
        if end == End::Abort {
            local.truncate(self.committed.max(self.position));
            process.window.abort();
            process.next = self.committed;
            self.process = Some(process);
            return;
        }
        self.state.extend(blocks.iter().map(Block::encode));
        self.rewound &= blocks.is_empty();
        for at in first..process.next {
            let record = self.raw[usize::try_from(at).unwrap()];
            if record.exists {
                self.auditor.committed(at, record, forwarded.contains(&at));
            }
        }
        self.committed = process.next;
        self.position = self.position.max(process.next);
        self.committed_time = process.window.stream_time_ms();
        if end == End::CrashAfterCommit {
            return;
        }
        let before = process.window.ids();
        let first_live = process.window.commit(process.next.max(process.skip_below));
        self.seen.expired += before - process.window.ids();
        self.seen.evicted += process.window.take_evicted();
        let local = &mut self.locals[self.here];
        local.expire(first_live);
        (local.confirmed, local.state_next) = (self.position, self.state.len());
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
            expired: sum.expired + seen.expired,
            evicted: sum.evicted + seen.evicted,
            restored: sum.restored + seen.restored,
        });
    }

    pub fn get(&self) -> Seen {
        self.0.take()
    }
}
