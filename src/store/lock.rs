//! The lock of a state directory: one process per directory.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::OpenError;

/// Name of the lock file.
pub(super) const FILE: &str = "lock";

/// Locks the state directory until it is dropped.
///
/// The lock belongs to the open file, so the kernel releases it however the process ends: a lock file left behind
/// does not prevent a start. The file is never deleted. Otherwise two processes could lock two different files of the
/// same name.
#[derive(Debug)]
pub struct Lock {
    dir: PathBuf,
    _file: File,
}

impl Lock {
    /// Creates the directory (mode 0700) if it does not exist and locks it without waiting.
    pub fn acquire(dir: &Path) -> Result<Self, OpenError> {
        create_private(dir).map_err(|e| OpenError::io("create the directory", dir, &e))?;
        let path = dir.join(FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| OpenError::io("open", &path, &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Held { dir: dir.to_path_buf(), holder: read_holder(&mut file) });
            }
            Err(TryLockError::Error(e)) => return Err(OpenError::io("lock", &path, &e)),
        }
        write_holder(&mut file).map_err(|e| OpenError::io("write", &path, &e))?;
        Ok(Self { dir: dir.to_path_buf(), _file: file })
    }

    /// The directory that this process may use until the lock is dropped.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Creates a directory and its parents with mode 0700. An existing directory is not changed.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn write_holder(file: &mut File) -> io::Result<()> {
    let host = gethostname::gethostname();
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "process {} on host {}", std::process::id(), host.to_string_lossy())
}

fn read_holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(512).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_holder_is_rejected_with_the_name_of_the_first() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a").join("state");
        let first = Lock::acquire(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let before = std::fs::read_to_string(dir.join("lock")).unwrap();
        let error = Lock::acquire(&dir).unwrap_err();
        assert!(matches!(error, OpenError::Held { .. }), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(
            std::fs::read_to_string(dir.join("lock")).unwrap(),
            before,
            "the holder's file is unchanged"
        );
        drop(first);
        assert!(Lock::acquire(&dir).is_ok());
    }

    #[test]
    fn a_lock_file_of_a_dead_process_does_not_prevent_a_lock() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("lock"), "process 999999 on host gone\n and a long second line")
            .unwrap();
        let lock = Lock::acquire(root.path()).unwrap();
        let text = std::fs::read_to_string(lock.dir().join("lock")).unwrap();
        assert!(text.starts_with(&format!("process {} ", std::process::id())) && text.lines().count() == 1);
    }

    #[test]
    fn a_path_that_is_a_file_is_rejected_with_its_name() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        std::fs::write(&path, "").unwrap();
        let error = Lock::acquire(&path).unwrap_err().to_string();
        assert!(error.contains("state.dir") && error.contains(&path.display().to_string()), "{error}");
    }
}
