//! The lock of a state directory: one process per directory.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use super::OpenError;
use super::guard::run_guarded;
use crate::locked::Locked;

/// Name of the lock file.
pub(super) const FILE: &str = "lock";
/// How long the file system may take to answer.
const ANSWER: Duration = Duration::from_mins(1);
/// Bytes that are written to find out whether the disk is full.
const PROBE: usize = 1 << 20;

/// How far the last takeover of an instance got: the second line of the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// There was none, or it ended without a failure before the instance was active.
    None,
    /// The instance takes over, or it was killed or failed meanwhile.
    Begun,
    /// The instance is active, or it was when it ended.
    Complete,
}

impl Takeover {
    const fn line(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Begun => "taking over",
            Self::Complete => "active",
        }
    }

    fn of(line: &str) -> Self {
        [Self::Begun, Self::Complete].into_iter().find(|it| it.line() == line).unwrap_or(Self::None)
    }
}

/// Locks the state directory until it is dropped.
///
/// The lock belongs to the open file, so the kernel releases it however the process ends: a lock file left behind
/// does not prevent a start. The file is never deleted. Otherwise two processes could lock two different files of the
/// same name.
#[derive(Debug)]
pub struct Lock {
    dir: PathBuf,
    file: File,
    /// How far the last takeover got, and the workers that take over.
    takeover: Mutex<(Takeover, BTreeSet<usize>)>,
    /// How far the last takeover of the process before this one got.
    pub found: Takeover,
}

impl Lock {
    /// Creates the directory (mode 0700) if it does not exist and locks it without waiting. Fails also when the file system does not answer.
    pub fn acquire(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.to_path_buf();
        let acquired = run_guarded("store-lock", ANSWER, move |_| Self::acquire_in(&path));
        acquired.unwrap_or_else(|_| Err(OpenError::io("lock", dir, &io::ErrorKind::TimedOut.into())))
    }

    /// The process that holds the directory; `None` when a start could lock it. Leaves nothing behind. Fails as
    /// [`Self::acquire`] would.
    pub fn probe(dir: &Path) -> Result<Option<String>, OpenError> {
        let path = dir.to_path_buf();
        let probed = run_guarded("store-lock", ANSWER, move |_| Self::probe_in(&path));
        probed.unwrap_or_else(|_| Err(OpenError::io("lock", dir, &io::ErrorKind::TimedOut.into())))
    }

    fn probe_in(dir: &Path) -> Result<Option<String>, OpenError> {
        let may_write = |dir: &Path| write_probe(&dir.join(format!(".dedupd-check-{}", std::process::id())));
        if !dir.is_dir() {
            let exists = |it: &&Path| it.as_os_str().is_empty() || it.exists();
            let possible = match dir.ancestors().find(exists) {
                // Creates nothing, because the name is taken.
                Some(taken) if taken == dir => DirBuilder::new().create(dir),
                above => {
                    may_write(above.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))
                }
            };
            return possible.map(|()| None).map_err(|e| OpenError::io("create the directory", dir, &e));
        }
        let path = dir.join(FILE);
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return may_write(dir).map(|()| None).map_err(|e| OpenError::io("open", &path, &e));
            }
            Err(e) => return Err(OpenError::io("open", &path, &e)),
        };
        // Released at once: there is no way to only look at it.
        match file.try_lock() {
            Ok(()) => may_write(dir).map(|()| None).map_err(|e| OpenError::io("write", dir, &e)),
            Err(TryLockError::WouldBlock) => Ok(Some(read_holder(&mut file).0)),
            Err(TryLockError::Error(e)) => Err(OpenError::io("lock", &path, &e)),
        }
    }

    fn acquire_in(dir: &Path) -> Result<Self, OpenError> {
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
                let (holder, _) = read_holder(&mut file);
                return Err(OpenError::Held { dir: dir.to_path_buf(), holder });
            }
            Err(TryLockError::Error(e)) => return Err(OpenError::io("lock", &path, &e)),
        }
        let (_, found) = read_holder(&mut file);
        write_holder(&file, found).map_err(|e| OpenError::io("write", &path, &e))?;
        let takeover = Mutex::new((found, BTreeSet::new()));
        Ok(Self { dir: dir.to_path_buf(), file, takeover, found })
    }

    /// How far the last takeover of this process got, or of the processes with this directory before it.
    pub fn takeover(&self) -> Takeover {
        self.takeover.locked().0
    }

    /// Notes how far a takeover of this worker got. That of the process has begun as long as that of one worker has. Not synced: a power loss takes longer
    /// than a session.
    pub fn set_takeover(&self, worker: usize, takeover: Takeover) -> Result<(), OpenError> {
        let mut noted = self.takeover.locked();
        let (of_all, begun) = &mut *noted;
        if takeover == Takeover::Begun {
            begun.insert(worker)
        } else {
            begun.remove(&worker)
        };
        *of_all = if begun.is_empty() { takeover } else { Takeover::Begun };
        write_holder(&self.file, *of_all).map_err(|e| OpenError::io("write", &self.dir.join(FILE), &e))
    }

    /// Fails when nothing can be written to the directory.
    pub fn check_writable(&self) -> Result<(), OpenError> {
        let path = self.dir.join("probe");
        write_probe(&path).map_err(|e| OpenError::io("write", &path, &e))
    }

    /// The directory that this process may use until the lock is dropped.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Fails when nothing can be written at this path. Permissions are not enough: nothing can be created below /proc, or on a full or read-only disk.
fn write_probe(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    // A process that ends meanwhile leaves no file behind.
    fs::remove_file(path)?;
    file.write_all(&vec![0; PROBE])?;
    file.sync_all()
}

/// Creates a directory and its parents with mode 0700. An existing directory is not changed.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn write_holder(mut file: &File, takeover: Takeover) -> io::Result<()> {
    let name = rustix::system::uname();
    let line = takeover.line();
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "process {} on host {}\n{line}", std::process::id(), name.nodename().to_string_lossy())
}

/// The process that wrote the file, and how far its takeover got.
fn read_holder(file: &mut File) -> (String, Takeover) {
    let mut text = String::new();
    file.take(512).read_to_string(&mut text).ok();
    let mut lines = text.lines();
    let holder = lines.next().map(str::trim).filter(|line| !line.is_empty()).unwrap_or("another process");
    (holder.to_owned(), lines.next().map_or(Takeover::None, Takeover::of))
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
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let before = fs::read_to_string(dir.join("lock")).unwrap();
        let error = Lock::acquire(&dir).unwrap_err();
        assert!(matches!(error, OpenError::Held { .. }), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(fs::read_to_string(dir.join("lock")).unwrap(), before, "the holder's file is unchanged");
        drop(first);
        assert!(Lock::acquire(&dir).is_ok());
    }

    #[test]
    fn a_lock_file_of_a_dead_process_does_not_prevent_a_lock() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("lock"), "process 999999 on host gone\n and a long second line").unwrap();
        let lock = Lock::acquire(root.path()).unwrap();
        let text = fs::read_to_string(lock.dir().join("lock")).unwrap();
        assert!(
            text.starts_with(&format!("process {} ", std::process::id()))
                && text.trim_end().lines().count() == 1
        );
    }

    #[test]
    fn the_next_process_knows_how_far_the_last_takeover_got() {
        let root = tempfile::tempdir().unwrap();
        let acquire = || Lock::acquire(root.path()).unwrap();
        assert_eq!(acquire().takeover(), Takeover::None);
        for takeover in [Takeover::Begun, Takeover::Complete, Takeover::None] {
            acquire().set_takeover(0, takeover).unwrap();
            // A start that ends early does not change that.
            assert_eq!(acquire().takeover(), takeover);
            assert_eq!(acquire().found, takeover);
        }
        let lock = acquire();
        for worker in 0..2 {
            lock.set_takeover(worker, Takeover::Begun).unwrap();
        }
        for (worker, takeover) in [(1, Takeover::Begun), (0, Takeover::Complete)] {
            lock.set_takeover(worker, Takeover::Complete).unwrap();
            assert_eq!((lock.takeover(), lock.found), (takeover, Takeover::None), "after worker {worker}");
        }
    }

    #[test]
    fn a_directory_that_is_gone_is_not_writable() {
        let root = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(&root.path().join("state")).unwrap();
        lock.check_writable().unwrap();
        assert_eq!(fs::read_dir(lock.dir()).unwrap().count(), 1, "only the lock file is left");
        fs::remove_dir_all(lock.dir()).unwrap();
        assert!(lock.check_writable().unwrap_err().to_string().contains("check the volume of state.dir"));
    }

    #[test]
    fn a_probe_fails_as_the_lock_would_and_creates_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (file, dir) = (root.path().join("file"), root.path().join("a").join("b"));
        fs::write(&file, "").unwrap();
        // Its superuser may write to it, but nothing can be created there.
        let proc = Path::new("/proc/dedupd/state").to_path_buf();
        for blocked in [file.clone(), file.join("state"), proc] {
            let probed = Lock::probe(&blocked).unwrap_err().to_string();
            assert_eq!(probed, Lock::acquire(&blocked).unwrap_err().to_string());
        }
        assert_eq!(Lock::probe(&dir).unwrap(), None);
        assert!(!root.path().join("a").exists());
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(Lock::probe(&dir).unwrap(), None);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        let lock = Lock::acquire(&dir).unwrap();
        let holder = Lock::probe(&dir).unwrap().unwrap();
        assert!(holder.starts_with(&format!("process {} ", std::process::id())), "{holder}");
        drop(lock);
        assert_eq!(Lock::probe(&dir).unwrap(), None);
    }

    #[test]
    fn a_path_that_is_a_file_is_rejected_with_its_name() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state");
        fs::write(&path, "").unwrap();
        let error = Lock::acquire(&path).unwrap_err().to_string();
        assert!(error.contains("state.dir") && error.contains(&path.display().to_string()), "{error}");
    }
}
