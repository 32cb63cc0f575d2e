//! Why the local store cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

/// The state directory cannot be used. Nothing in it was changed, except for what the message reports.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked the directory.
    #[error(
        "state directory {} is in use by {holder}: stop it, or give this instance its own state.dir",
        dir.display()
    )]
    Held {
        /// Value of `state.dir`.
        dir: PathBuf,
        /// The process that holds the lock, as written in the lock file.
        holder: String,
    },
    /// A file system operation failed.
    #[error("cannot {attempt} {}: {cause}; {remedy}", path.display())]
    Io {
        /// The operation as a verb, such as "write".
        attempt: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the file system.
        cause: String,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The identities in the store were computed with another hash or another key.
    #[error(
        "state in {} was made with {stored}, but {configured} is configured: their identities cannot be \
         compared. Restore identity.hash and its key file; or start over with new names for topics.state and group.id; \
         or start once with an empty window: set identity.accept_change to the value that a start without local state reports",
        dir.display()
    )]
    Hash {
        /// Value of `state.dir`.
        dir: PathBuf,
        /// The hash in the store.
        stored: String,
        /// The hash in the configuration.
        configured: String,
    },
    /// The identities in the store were computed by another rule.
    #[error(
        "state in {} was made by another identity rule{of} than the configured one: equal bytes from other \
         fields would count as known ids, and new events would be dropped. Restore identity.from and the rules of [[kinds]]; \
         or start over with new names for topics.state and group.id; or start once with an empty window: set \
         identity.accept_change = \"{accept}\"",
        dir.display()
    )]
    Rule {
        /// Value of `state.dir`.
        dir: PathBuf,
        /// The kind that it is about, after a space; empty for records of no named kind.
        of: String,
        /// The value of `identity.accept_change` that accepts the change.
        accept: String,
    },
    /// The directory contains no state.
    #[error(
        "there is no state in {}: no instance has stored state yet, or state.dir is wrong",
        dir.display()
    )]
    Absent {
        /// Value of `state.dir`.
        dir: PathBuf,
    },
    /// The stored bytes are damaged.
    #[error(
        "the state in {} is damaged: {cause}. It was not changed; the next start of the service quarantines \
         it and rebuilds it from the state topic",
        database.display()
    )]
    Damaged {
        /// Path of the database in `state.dir`.
        database: PathBuf,
        /// What is damaged, and where.
        cause: String,
    },
    /// The directory must be empty and is not.
    #[error(
        "state directory {} is not empty, it contains {what}: import into another state.dir, or empty it first \
         (`dedupd state reset` deletes state, and nothing else)",
        dir.display()
    )]
    Occupied {
        /// Value of `state.dir`.
        dir: PathBuf,
        /// Name of one of the entries.
        what: String,
    },
    /// Even a new database cannot be opened.
    #[error(
        "the store's engine fails on a new database at {}: {cause}. Restart this process; if the error \
         persists, check the disk",
        path.display()
    )]
    Engine {
        /// Path of the new database.
        path: PathBuf,
        /// Error or panic message of the engine, or the deadline that passed.
        cause: String,
    },
}

impl OpenError {
    /// An error of the file system, with the remedy for its kind.
    pub(super) fn io(attempt: &'static str, path: &Path, cause: &io::Error) -> Self {
        Self::Io { attempt, path: path.to_path_buf(), cause: cause.to_string(), remedy: remedy(cause) }
    }
}

/// Whether an operator must act, because the disk or its permissions are at fault and not the stored bytes.
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

/// Whether the disk has no space left.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether a failed call means damaged stored bytes rather than a failing disk.
pub(super) fn is_damage(cause: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    !needs_operator(cause) && matches!(cause.kind(), InvalidData | InvalidInput | NotFound | UnexpectedEof)
}

pub(super) fn is_missing_data(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

/// sled reports a lock held by another process as an error of kind `Other`. Only its text identifies it.
fn held_elsewhere(cause: &io::Error) -> bool {
    cause.to_string().contains("could not acquire lock")
}

/// What the operator can do about it.
pub(super) fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        _ if is_full(cause) => {
            "free space or enlarge the volume; state.max_disk limits the size of the state"
        }
        io::ErrorKind::FileTooLarge => "raise the file size limit (ulimit -f)",
        io::ErrorKind::PermissionDenied => "give this user read and write permission on state.dir",
        io::ErrorKind::ReadOnlyFilesystem => "mount the volume of state.dir writable",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "set state.dir to a directory",
        _ if held_elsewhere(cause) => "wait until the process that has it open has exited",
        _ if matches!(cause.raw_os_error(), Some(23 | 24)) => "raise the limit of open files",
        _ => "check the volume of state.dir",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_needs_an_operator_and_a_short_file_does_not() {
        assert!(needs_operator(&io::Error::from_raw_os_error(28)));
        assert!(needs_operator(&io::Error::from_raw_os_error(13)));
        assert!(needs_operator(&io::Error::from_raw_os_error(5)));
        assert!(needs_operator(&io::Error::other("could not acquire lock on \"db\"")));
        assert!(!needs_operator(&io::Error::from(io::ErrorKind::UnexpectedEof)));
        assert!(!needs_operator(&io::Error::from(io::ErrorKind::NotFound)));
    }

    #[test]
    fn an_io_error_names_path_and_remedy() {
        let error = OpenError::io("open", Path::new("/var/state/db-1"), &io::Error::from_raw_os_error(28))
            .to_string();
        assert!(error.contains("/var/state/db-1") && error.contains("free space"), "{error}");
    }
}
