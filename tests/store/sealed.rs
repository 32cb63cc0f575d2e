//! Random histories of a store with slices, against a model: owners are sealed, merged, put into filters, undone, forgotten, expired and cleared. In
//! between the store is opened again as it was closed, as a kill leaves it, and damaged.
//!
//! `SEALED_SEED=<n>` runs one history; `SEALED_CASES` and `SEALED_STEPS` are their number and length.

mod model;

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use dedupd::dedupe::KnownOwner;
use dedupd::ports::StoreError;
use fastrand::Rng;
use model::{Model, Modelled, check, has};

use super::damage::{copy, database, files};
use super::*;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

struct History {
    dir: tempfile::TempDir,
    binding: Binding,
    /// The model after each step since the last sync.
    since: Vec<Model>,
    /// A copy of the directory when it was closed, and the model of it.
    older: Option<(PathBuf, Model)>,
    /// Slice files that were deleted later, maybe.
    old_slices: Vec<Vec<u8>>,
    case: String,
}

fn is_slice(bytes: &[u8]) -> bool {
    bytes.ends_with(b"DDS3")
}

impl History {
    fn open(&self, dir: &Path) -> Opened {
        open(dir, &self.binding, CACHE_BYTES, DEADLINE).unwrap()
    }

    fn opened(&self, dir: &Path) -> SledStore {
        let Opened { store, quarantined } = self.open(dir);
        assert_eq!(quarantined, None, "{}", self.case);
        store
    }

    /// Closes the store, lets `between` use its directory, and opens it again.
    fn reopen(&mut self, state: &mut Modelled, between: impl FnOnce(&mut Self, &mut Modelled)) {
        // A handle of another directory stands in for the one that is closed.
        let aside = tempfile::tempdir().unwrap();
        let stand_in = open(aside.path(), &self.binding, CACHE_BYTES, DEADLINE).unwrap().store;
        std::mem::replace(&mut state.store, stand_in).close().unwrap();
        between(self, state);
        let reopened = self.opened(self.dir.path());
        std::mem::replace(&mut state.store, reopened).close().unwrap();
        model::start(&mut state.store, &mut state.model).unwrap();
        self.synced(state);
        check(&state.store, &state.model, &mut state.rng, &self.case).unwrap();
    }

    fn synced(&mut self, state: &mut Modelled) {
        state.store.sync().unwrap();
        self.since = vec![state.model.clone()];
    }

    /// Keeps a copy of the closed directory, in which files can be as they were then.
    fn keep(&mut self, state: &Modelled) {
        let copied = self.dir.path().join("older");
        drop(fs::remove_dir_all(&copied));
        copy(&database(self.dir.path()), &copied);
        let bytes = files(&copied).into_iter().map(|file| fs::read(file).unwrap());
        self.old_slices.extend(bytes.filter(|bytes| is_slice(bytes)));
        self.old_slices.truncate(20);
        self.older = Some((copied, state.model.clone()));
    }

    /// Opens what a kill would leave now: what has not been synced may be there or not.
    fn kill(&mut self, state: &mut Modelled) {
        let image = tempfile::tempdir().unwrap();
        let (from, to) = (database(self.dir.path()), image.path().join("db-1"));
        loop {
            copy(&from, &to);
            // The engine may have written meanwhile, and not like that.
            let same = |file: &PathBuf| {
                fs::read(file).ok() == fs::read(to.join(file.strip_prefix(&from).unwrap())).ok()
            };
            if files(&from).iter().all(same) && files(&from).len() == files(&to).len() {
                break;
            }
            fs::remove_dir_all(&to).unwrap();
        }
        let mut store = self.opened(image.path());
        let mut model = state.model.clone();
        model::start(&mut store, &mut model).unwrap();
        for (window, owned) in &model {
            let in_all = |number: &Sequence, owner: &StoredOwner| {
                self.since.iter().all(|model| model[window].live.get(number) == Some(owner))
            };
            for (number, owner) in owned.live.iter().filter(|(number, owner)| in_all(number, owner)) {
                let has = has(&store, *window, *number, owner).unwrap();
                assert!(has, "{}: owner {number} of {window} is lost by a kill", self.case);
            }
            let (expired, removed) = (owned.expired.clone(), self.since[0][window].removed.clone());
            let before = Model::from([(*window, model::Owned { expired, removed, ..Default::default() })]);
            check(&store, &before, &mut state.rng, &format!("{} after a kill", self.case)).unwrap();
        }
        store.close().unwrap();
    }

    /// Damages a copy of the closed directory, and opens it. Returns whether that was noticed.
    fn damage(&mut self, state: &mut Modelled) -> bool {
        let damaged = tempfile::tempdir().unwrap();
        let target = damaged.path().join("db-1");
        copy(&database(self.dir.path()), &target);
        let (what, mut model) = self.damage_in(&target, state);
        let case = format!("{}: {what}", self.case);
        let Opened { mut store, quarantined } = self.open(damaged.path());
        if quarantined.is_some() {
            store.close().unwrap();
            return true;
        }
        let used = Self::use_damaged(&mut store, &mut model, (&mut state.rng, &case));
        let closed = store.close();
        let Err(StoreError::Corrupt(_)) = used else {
            assert_eq!((used, closed), (Ok(()), Ok(())), "{case}");
            return false;
        };
        assert!(self.open(damaged.path()).quarantined.is_some(), "{case}: not quarantined");
        true
    }

    /// Looks up and merges. Damage is noticed or makes no difference.
    fn use_damaged(
        store: &mut SledStore,
        model: &mut Model,
        (rng, case): (&mut Rng, &str),
    ) -> Result<(), StoreError> {
        model::start(store, model)?;
        check(store, model, rng, case)?;
        for (window, owned) in &*model {
            let live: HashMap<_, _> = owned.live.values().map(|owner| (owner.at, owner.identity)).collect();
            // Every page of slices, as a merge reads them.
            store.scan_sealed(&[*window], &mut |_, identity, KnownOwner { at, .. }| {
                let is_ours = live.get(&at).is_none_or(|live| *live == Some(identity));
                assert!(is_ours, "{case}: {at} of {window} has another identity");
                Ok(())
            })?;
        }
        check(store, model, rng, case)
    }

    /// Damages a database in one way. Returns what was done, and what it has if that is not noticed.
    fn damage_in(&self, database: &Path, state: &mut Modelled) -> (String, Model) {
        let rng = &mut state.rng;
        let files = files(&database.join("owners"));
        let slices: Vec<_> = files.iter().filter(|file| is_slice(&fs::read(file).unwrap())).collect();
        let kind = rng.u8(..11);
        if kind >= 9
            && let Some((older, model)) = &self.older
        {
            if kind == 9 {
                fs::copy(older.join("db"), database.join("db")).unwrap();
                return ("an older db beside newer files".to_owned(), model.clone());
            }
            fs::remove_dir_all(database).unwrap();
            copy(older, database);
            return ("an older directory".to_owned(), model.clone());
        }
        let targets = if slices.is_empty() || rng.u8(..4) == 0 { files.iter().collect() } else { slices };
        if targets.is_empty() {
            return ("nothing".to_owned(), state.model.clone());
        }
        let mut any = || targets[rng.usize(..targets.len())];
        let (file, other) = (any(), any());
        let (mut bytes, others) = (fs::read(file).unwrap(), fs::read(other).unwrap());
        let at = rng.usize(..bytes.len().max(1));
        let length = bytes.len();
        let page = |at: usize| at / 4_096 * 4_096..(at / 4_096 * 4_096 + 4_096).min(length);
        let what = match kind {
            _ if bytes.is_empty() => "nothing",
            0 | 1 => {
                bytes[at] ^= 1 << rng.u8(..8);
                "a bit flipped"
            }
            2 => {
                bytes.truncate(at);
                "truncated"
            }
            3 => {
                bytes[at..].iter_mut().take(rng.usize(1..9_000)).for_each(|byte| *byte = rng.u8(..));
                "random bytes"
            }
            4 | 5 => {
                let other = rng.usize(..bytes.len());
                exchange(&mut bytes, page(at), page(other));
                "two pages exchanged"
            }
            6 => {
                let page = page(at);
                let from = if self.old_slices.is_empty() || rng.bool() {
                    &others
                } else {
                    &self.old_slices[rng.usize(..self.old_slices.len())]
                };
                if let Some(older) = from.get(page.clone()) {
                    bytes[page].copy_from_slice(older);
                }
                "a page of another or an older file at its place"
            }
            7 => {
                fs::write(other, &bytes).unwrap();
                bytes = others;
                "two files swapped"
            }
            _ => {
                let name = Path::new("owners").join(file.file_name().unwrap());
                let older = self.older.as_ref().and_then(|(older, _)| fs::read(older.join(name)).ok());
                bytes = older.unwrap_or_else(|| self.old_slices.first().cloned().unwrap_or_default());
                "an older file"
            }
        };
        fs::write(file, bytes).unwrap();
        (format!("{what} in {} at {at}", file.display()), state.model.clone())
    }
}

fn exchange(bytes: &mut [u8], one: Range<usize>, two: Range<usize>) {
    let (first, second) = (bytes[one.clone()].to_vec(), bytes[two.clone()].to_vec());
    let length = first.len().min(second.len());
    bytes[two.start..two.start + length].copy_from_slice(&first[..length]);
    bytes[one.start..one.start + length].copy_from_slice(&second[..length]);
}

/// Runs a history. Returns what has happened in it.
fn run(seed: u64, steps: u64) -> BTreeMap<&'static str, u64> {
    let mut rng = Rng::with_seed(seed);
    let (dir, binding) = (tempfile::tempdir().unwrap(), model::binding(&mut rng));
    let store = open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store;
    let mut state = Modelled::new(rng, store, &binding);
    let (since, older, old_slices) = (vec![state.model.clone()], None, Vec::new());
    let mut history = History { dir, binding, since, older, old_slices, case: String::new() };
    for step in 0..steps {
        history.case = format!("SEALED_SEED={seed}, step {step}");
        let mut happened = None;
        match state.rng.u8(..100) {
            0..2 => history.reopen(&mut state, |_, _| ()),
            2 => history.reopen(&mut state, |history, state| history.keep(state)),
            3..6 => {
                let mut is_noticed = false;
                history.reopen(&mut state, |history, state| is_noticed = history.damage(state));
                happened = Some(if is_noticed { "damage noticed" } else { "damage without effect" });
            }
            6..9 => {
                history.kill(&mut state);
                happened = Some("kill");
            }
            9..14 => history.synced(&mut state),
            _ => {
                state.step();
                history.since.push(state.model.clone());
            }
        }
        if let Some(happened) = happened {
            *state.events.entry(happened).or_default() += 1;
        }
        if step % 6 == 0 {
            check(&state.store, &state.model, &mut state.rng, &history.case).unwrap();
        }
    }
    state.store.close().unwrap();
    state.events
}

#[test]
fn any_history_with_slices_keeps_all_owners_and_any_damage_is_noticed_or_without_effect() {
    let steps = variable("SEALED_STEPS", 300);
    let (first, cases) = match std::env::var("SEALED_SEED") {
        Ok(seed) => (seed.parse().unwrap(), 1),
        Err(_) => (variable("SEALED_BASE", 1), variable("SEALED_CASES", 8)),
    };
    let mut all = BTreeMap::<_, u64>::new();
    for seed in first..first + cases {
        for (what, count) in run(seed, steps) {
            *all.entry(what).or_default() += count;
        }
    }
    println!("{all:?}");
    for what in ["sealed", "filters begun", "undone", "kill", "damage noticed", "damage without effect"] {
        assert!(cases < 8 || all.contains_key(what), "no history had: {what}");
    }
}
