//! Why the local store cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

/// The state directory cannot be used; nothing in it was changed except what the message says.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error(
        "state directory {} is in use by {holder}: stop it, or give this instance its own state.dir",
        dir.display()
    )]
    Held {
        /// The state directory.
        dir: PathBuf,
        /// Who holds it, as it wrote into the lock file.
        holder: String,
    },
    /// The file system refused.
    #[error("cannot {attempt} {}: {cause}; {remedy}", path.display())]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the file system said.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The identities in the store were made by another hash or with another key.
    #[error(
        "state in {} was made with {stored}, the configuration says {configured}: their identities cannot be \
         compared. Restore identity.hash and its key file; or begin anew with other names for topics.state and group.id; \
         or let the window begin empty, once, with identity.accept_change, whose value a start without local state names",
        dir.display()
    )]
    Hash {
        /// The state directory.
        dir: PathBuf,
        /// The hash in the store.
        stored: String,
        /// The hash in the configuration.
        configured: String,
    },
    /// The identities in the store were made by another rule.
    #[error(
        "state in {} was made by the identity rule {stored}, which the configuration has changed: equal bytes from other \
         fields would count as known ids, and new events would be dropped. Restore identity.from and what [[kinds]] go by; \
         or begin anew with other names for topics.state and group.id; or let the window begin empty, once, with \
         identity.accept_change = {accept:?}",
        dir.display()
    )]
    Rule {
        /// The state directory.
        dir: PathBuf,
        /// The rule in the store.
        stored: String,
        /// What accepts the change.
        accept: String,
    },
    /// There is nothing to read.
    #[error(
        "there is no state in {}: no instance has stored any yet, or state.dir is another directory",
        dir.display()
    )]
    Absent {
        /// The state directory.
        dir: PathBuf,
    },
    /// The stored bytes cannot be believed.
    #[error(
        "the state in {} is damaged: {cause}. It was left as it is; the next start of the service sets it \
         aside and rebuilds it from the state topic",
        database.display()
    )]
    Damaged {
        /// The database.
        database: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// There is something where nothing may be.
    #[error(
        "state directory {} is not empty, it holds {what}: delete that state with `dedupd state reset` first, \
         or import into another state.dir",
        dir.display()
    )]
    Occupied {
        /// The state directory.
        dir: PathBuf,
        /// One of the entries.
        what: String,
    },
    /// Not even a fresh database works.
    #[error(
        "the store's engine fails on a fresh database at {}: {cause}. Restart this process; if it stays, \
         check the disk",
        path.display()
    )]
    Engine {
        /// The fresh database.
        path: PathBuf,
        /// What happened.
        cause: String,
    },
}

impl OpenError {
    /// What the file system refused, with the remedy that fits the kind of refusal.
    pub(super) fn io(attempt: &'static str, path: &Path, cause: &io::Error) -> Self {
        Self::Io { attempt, path: path.to_path_buf(), cause: cause.to_string(), remedy: remedy(cause) }
    }
}

/// Whether it takes an operator: the disk or its permissions are at fault, not the stored bytes.
pub(super) fn needs_operator(cause: &io::Error) -> bool {
    const EIO: i32 = 5;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(
        cause.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::OutOfMemory
    ) || matches!(cause.raw_os_error(), Some(EIO | ENFILE | EMFILE))
        || held_elsewhere(cause)
}

/// sled reports a lock that somebody else holds as an error of kind `Other`, by its text alone.
fn held_elsewhere(cause: &io::Error) -> bool {
    cause.to_string().contains("could not acquire lock")
}

/// What to do about it.
pub(super) fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space or enlarge the volume; state.max_disk keeps the state within a bound"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        io::ErrorKind::PermissionDenied => "give this user read and write permission on state.dir",
        io::ErrorKind::ReadOnlyFilesystem => "mount the volume of state.dir writable",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "let state.dir name a directory",
        _ if held_elsewhere(cause) => "wait until the process that has it open has ended",
        _ if matches!(cause.raw_os_error(), Some(23 | 24)) => "raise the limit on open files",
        _ => "check the volume of state.dir",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_the_operators_and_a_short_file_is_not() {
        assert!(needs_operator(&io::Error::from_raw_os_error(28)));
        assert!(needs_operator(&io::Error::from_raw_os_error(13)));
        assert!(needs_operator(&io::Error::from_raw_os_error(5)));
        assert!(needs_operator(&io::Error::other("could not acquire lock on \"db\"")));
        assert!(!needs_operator(&io::Error::from(io::ErrorKind::UnexpectedEof)));
        assert!(!needs_operator(&io::Error::from(io::ErrorKind::NotFound)));
    }

    #[test]
    fn a_refusal_names_path_and_remedy() {
        let error = OpenError::io("open", Path::new("/var/state/db-1"), &io::Error::from_raw_os_error(28))
            .to_string();
        assert!(error.contains("/var/state/db-1") && error.contains("free space"), "{error}");
    }
}
