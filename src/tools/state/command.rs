//! `dedupd state`: runs the functions of this module for the command line, and prints the results.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use super::{Lengths, LookupResult, StateError, Transferred};
use crate::app::{ExitError, OPEN_LIMIT, begin_log_quietly, bound_rules, hasher, window_limits};
use crate::cli::{Exit, ExportArgs, FilterArgs, ImportArgs, InspectArgs, LocalArgs, ResetArgs, StateCommand};
use crate::config::{self, Local};
use crate::dedupe::{Fingerprint, Hasher, IdPart, IdSource, Identity, IdentityRule};
use crate::store::{Binding, Copied, DirectoryContents, Lock, OpenError, OtherRule, open_copy};
use crate::tools::print;

impl From<StateError> for ExitError {
    fn from(error: StateError) -> Self {
        Self::new(Exit::State, error.to_string())
    }
}

/// Runs a subcommand of `state`.
pub fn command(command: &StateCommand) -> Result<Exit, ExitError> {
    begin_log_quietly();
    match command {
        StateCommand::Inspect(args) => inspect(args),
        StateCommand::Export(args) => export(args).map(|()| Exit::Done),
        StateCommand::Filter(args) => filter(args),
        StateCommand::Import(args) => import(args).map(|()| Exit::Done),
        StateCommand::Reset(args) => reset(args),
    }
}

fn inspect(args: &InspectArgs) -> Result<Exit, ExitError> {
    let local = load(&args.local)?;
    if args.id.is_empty() {
        let inspect = |copied: &Copied| showing("windows", |bar| super::inspect(copied, bar));
        print(&with_copy(&local, inspect)?, args.json)?;
        return Ok(Exit::Done);
    }
    let identity = identity(&args.id, "--id", &local, hasher(&local.hash)?)?;
    let answer =
        look_up(&local, identity, args.partition, |binding| check_partition(args.partition, binding))?;
    print(&answer, args.json)?;
    Ok(if answer.is_found() { Exit::Done } else { Exit::No })
}

/// Looks up an identity in the state of a stopped instance, unless `check` refuses what the state belongs to.
pub(crate) fn look_up(
    local: &Local,
    identity: Identity,
    partition: Option<u32>,
    check: impl FnOnce(&Binding) -> Result<(), ExitError>,
) -> Result<LookupResult, ExitError> {
    let (hasher, lengths) = (hasher(&local.hash)?, lengths(local));
    with_copy(local, |copied| {
        check(&copied.binding)?;
        check_rule(local, hasher, &copied.binding)?;
        showing("windows", |bar| LookupResult::of(identity, copied, partition, &lengths, bar))
    })
}

fn check_partition(partition: Option<u32>, binding: &Binding) -> Result<(), ExitError> {
    match partition.filter(|partition| *partition >= binding.partitions) {
        None => Ok(()),
        Some(partition) => Err(ExitError::usage(format!(
            "--partition {partition} does not exist: topic {} has partitions 0 to {}",
            binding.raw,
            binding.partitions.saturating_sub(1)
        ))),
    }
}

/// `flag` has given the id.
fn identity(id: &[String], flag: &str, local: &Local, hasher: Hasher) -> Result<Identity, ExitError> {
    if let Some(from) = local.from.as_ref().filter(|from| from.len() != id.len()) {
        let places: Vec<_> = from.iter().map(ToString::to_string).collect();
        return Err(ExitError::usage(format!(
            "wrong number of {flag}: an id has {} part(s), from {}, but {} were given; repeat {flag} for each part, in this order",
            from.len(),
            places.join(", "),
            id.len()
        )));
    }
    let empty = || {
        ExitError::usage(format!(
            "{flag} is empty: a record without a part that is not optional has no id; give a text for each part"
        ))
    };
    let plain = || vec![IdPart::from(IdSource::Key); id.len()];
    let rule = IdentityRule::new(local.from.clone().unwrap_or_else(plain), hasher);
    rule.identify_texts(id).ok_or_else(empty)
}

fn export(args: &ExportArgs) -> Result<(), ExitError> {
    let local = load(&args.local)?;
    let (done, filtered) = written(&local, |copied| {
        showing("ids", |bar| super::export(&copied.store, &copied.binding, &args.to, bar))
    })?;
    println!("{} written: {}", args.to.display(), amount(&done));
    tell_left_out(filtered);
    Ok(())
}

fn filter(args: &FilterArgs) -> Result<Exit, ExitError> {
    let local = load(&args.local)?;
    let hasher = hasher(&local.hash)?;
    if !args.contains.is_empty() {
        let identity = identity(&args.contains, "--contains", &local, hasher)?;
        let filter = super::PortableFilter::read(&args.file)?;
        if let Some((configured, stored)) = configured_rule(&local, hasher).zip(filter.rule())
            && stored != configured
        {
            let what = args.file.display().to_string();
            return Err(refused_rule(&local, &what, OtherRule { kind: None, stored, configured }));
        }
        let is_found = filter.may_contain(&identity);
        println!("{}", if is_found { "yes, or a false positive" } else { "no" });
        return Ok(if is_found { Exit::Done } else { Exit::No });
    }
    // The file is asked with the same configuration, and then it has to be that of the state.
    let (made, filtered) = written(&local, |copied| {
        check_rule(&local, hasher, &copied.binding)?;
        let Copied { store, binding, .. } = copied;
        showing("ids", |bar| super::write_filter(store, binding, &args.file, args.false_positive_rate, bar))
    })?;
    println!("{} written: {} ids, {}", args.file.display(), HumanCount(made.ids), ByteSize(made.bytes));
    tell_left_out(filtered);
    Ok(Exit::Done)
}

/// What `write` has written of a copy of the state, and the number of ids that it leaves out.
fn written<T>(
    local: &Local,
    write: impl FnOnce(&Copied) -> Result<T, ExitError>,
) -> Result<(T, u64), ExitError> {
    with_copy(local, |copied| {
        let done = write(copied)?;
        Ok((done, super::left_out(&copied.store, &copied.binding)))
    })
}

fn tell_left_out(filtered: u64) {
    if filtered > 0 {
        println!("not written: {} ids beyond window.exact, which are in filters only", HumanCount(filtered));
    }
}

fn amount(done: &Transferred) -> String {
    format!("{} ids in {} blocks", HumanCount(done.ids), HumanCount(done.blocks))
}

fn import(args: &ImportArgs) -> Result<(), ExitError> {
    let local = load(&args.local)?;
    let dir = &local.state.dir;
    // Checked before the file is read, because that can take long. A missing directory is not created yet.
    let lock = if dir.exists() { Some(lock(&local)?) } else { None };
    DirectoryContents::of(dir)?.must_be_empty()?;
    let verified = showing("ids verified", |bar| super::verify(&args.from, bar))?;
    check_rule(&local, hasher(&local.hash)?, &verified.header.binding)?;
    let _lock = lock.map_or_else(|| self::lock(&local), Ok)?;
    let database = showing("ids", |bar| {
        bar.set_length(verified.ids);
        super::import(&args.from, dir, local.state.cache, OPEN_LIMIT, bar)
    })?;
    println!("{} imported from {}: {}", database.display(), args.from.display(), amount(&verified));
    Ok(())
}

fn reset(args: &ResetArgs) -> Result<Exit, ExitError> {
    let local = load(&args.local)?;
    let dir = &local.state.dir;
    if !dir.exists() {
        // Another directory than that of the instance, for example without a variable of its unit: not "nothing to delete".
        return Err(OpenError::Absent { dir: dir.clone() }.into());
    }
    // Before the lock, which writes a file.
    if DirectoryContents::of(dir)?.ours.is_empty() {
        println!("{} contains no state: nothing to delete", dir.display());
        return Ok(Exit::Done);
    }
    let _lock = lock(&local)?;
    let contents = DirectoryContents::of(dir)?;
    println!("to be deleted:");
    for entry in &contents.ours {
        println!("  {}  {}", entry.path.display(), ByteSize(entry.bytes).display().iec());
    }
    contents.others.iter().for_each(|path| println!("not touched: {}", path.display()));
    println!("The state topic is not changed: the next start restores the state from it.");
    if !args.yes && !confirmed(dir)? {
        println!("nothing was deleted");
        return Ok(Exit::No);
    }
    contents.delete()?;
    println!("deleted");
    Ok(Exit::Done)
}

/// Requests a confirmation on the terminal.
fn confirmed(dir: &Path) -> Result<bool, ExitError> {
    if !io::stdin().is_terminal() {
        return Err(ExitError::usage(format!(
            "no terminal to confirm the deletion of the state in {}; add --yes to delete without confirmation",
            dir.display()
        )));
    }
    print!("Delete? Type yes: ");
    let mut answer = String::new();
    let read = io::stdout().flush().and_then(|()| io::stdin().lock().read_line(&mut answer));
    read.map_err(|e| {
        ExitError::failed(format!("the confirmation cannot be read: {e}; nothing was deleted"))
    })?;
    Ok(answer.trim() == "yes")
}

fn load(args: &LocalArgs) -> Result<Local, ExitError> {
    Ok(config::load_local(args.config.as_deref(), args.overrides())?)
}

fn lengths(local: &Local) -> Lengths {
    let length = |window| window_limits(window, None).length();
    let named =
        local.kinds.iter().filter_map(|kind| Some((kind.name.clone(), length(kind.window.as_ref()?))));
    Lengths::new(length(&local.window), named.collect())
}

fn lock(local: &Local) -> Result<Lock, ExitError> {
    Lock::acquire(&local.state.dir).map_err(|error| match error {
        OpenError::Held { .. } => ExitError::new(
            Exit::State,
            format!(
                "{error}. A running instance answers GET http://{}/state, if that is its http.listen",
                local.http.listen
            ),
        ),
        other => other.into(),
    })
}

/// Locks the directory and passes a copy of its state to `read`.
fn with_copy<T>(local: &Local, read: impl FnOnce(&Copied) -> Result<T, ExitError>) -> Result<T, ExitError> {
    let dir = &local.state.dir;
    if !dir.exists() {
        return Err(OpenError::Absent { dir: dir.clone() }.into());
    }
    let _lock = lock(local)?;
    let bar = ProgressBar::new_spinner().with_message("copying and verifying the state");
    bar.enable_steady_tick(Duration::from_millis(100));
    let copied = open_copy(dir, &std::env::temp_dir(), local.state.cache, OPEN_LIMIT);
    bar.finish_and_clear();
    let copied = copied?;
    let result = read(&copied);
    copied.close();
    result
}

/// Returns an error when the identities of the state were made with another hash, or by another rule, than is configured: they must not be
/// compared. Without `identity.from` no rule is configured.
fn check_rule(local: &Local, hasher: Hasher, stored: &Binding) -> Result<(), ExitError> {
    let configured = Binding { hash: hasher.kind(), ..stored.clone() };
    if configured.hash != stored.hash {
        let (stored, configured) = (stored.hash_text(), configured.hash_text());
        return Err(OpenError::Hash { dir: local.state.dir.clone(), stored, configured }.into());
    }
    let Some(rule) = configured_rule(local, hasher) else { return Ok(()) };
    let state = format!("state in {}", local.state.dir.display());
    let configured = bound_rules(&local.kinds, rule);
    configured.other_rule(stored).map_or(Ok(()), |other| Err(refused_rule(local, &state, other)))
}

/// The rule for the records of no named kind; `None` without `identity.from`.
fn configured_rule(local: &Local, hasher: Hasher) -> Option<Fingerprint> {
    let rule = IdentityRule::new(local.from.clone()?, hasher).framed(local.frame);
    Some(rule.fingerprint())
}

/// `what` was made by another rule.
fn refused_rule(
    local: &Local,
    what: &str,
    OtherRule { kind, stored, configured }: OtherRule<'_>,
) -> ExitError {
    let of = kind.map(|name| format!(" of kind \"{name}\"")).unwrap_or_default();
    let from: Vec<_> = local.from.iter().flatten().map(ToString::to_string).collect();
    ExitError::new(
        Exit::State,
        format!(
            "{what} was made by identity rule {stored}{of}, but {configured} is configured, with identity.from {}: ids of one are \
             not found in the other. Use the configuration of the instance that made it: identity.from, identity.hash with its key, \
             schemas.frame, and from and values of [[kinds]]",
            from.join(", ")
        ),
    )
}

/// Does `work` with a bar that counts `what`.
fn showing<T>(
    what: &'static str,
    work: impl FnOnce(&ProgressBar) -> Result<T, StateError>,
) -> Result<T, ExitError> {
    let mut bar = ProgressBar::new(0).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}  {elapsed}") {
        bar = bar.with_style(style);
    }
    let done = work(&bar)?;
    bar.finish_and_clear();
    Ok(done)
}
