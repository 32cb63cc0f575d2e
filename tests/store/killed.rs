//! A store whose process is killed at any moment opens without holes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "STORE_KILLED_DIR";
const JOURNALS: PartitionId = 3;
/// Owners that a window has: a few files of minimum size.
const WINDOW: u64 = 20_000;

/// Appends, truncates and expires, starting where the last process ended, until it is killed.
fn write_until_killed(dir: &Path) -> ! {
    let mut store = reopened(dir);
    let mut random = fastrand::Rng::new();
    loop {
        let journal = random.u32(..JOURNALS);
        for _ in 0..100 {
            let mut first = store.next_number(journal.into()).unwrap();
            if random.u32(..10) == 0 {
                first = first.saturating_sub(random.u64(..2_000));
                store.truncate(journal.into(), first).unwrap();
            }
            let length = if random.bool() { random.u64(1..8_000) } else { random.u64(1..40) };
            store.put(journal.into(), &owners(journal, first..first + length, 1), &head(first)).unwrap();
            store.expire(journal.into(), (first + length).saturating_sub(WINDOW), 0).unwrap();
        }
    }
}

#[test]
fn a_store_killed_at_any_moment_opens_without_holes() {
    if let Some(dir) = std::env::var_os(DIR) {
        // This is the process that will be killed.
        write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut most = 0;
    for kill in 0..12 {
        let itself = "killed::a_store_killed_at_any_moment_opens_without_holes";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", itself, "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Some processes are killed while they open the store of the previous one.
        std::thread::sleep(Duration::from_millis(random.u64(5..1_000)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "it was not killed");
        let store = reopened(dir.path());
        for journal in 0..JOURNALS {
            let stored = contents(&store, journal);
            most = most.max(stored.len());
            let (Some(head), Some((first, _))) =
                (store.head(journal.into()).unwrap(), stored.first_key_value())
            else {
                continue;
            };
            assert_eq!(stored.range(..head.confirmed).count() as u64, head.confirmed - first, "a hole");
            let right = stored.iter().all(|(number, found)| *found == owner(journal, *number, 1));
            assert!(right, "an identity that was never written, after kill {kill}");
        }
        // Unreferenced bytes of the killed process are deleted: the files hold less than twice the live bytes.
        let files = fs::read_dir(store.path().join("owners")).unwrap().map(|file| file.unwrap());
        let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
        let live: u64 =
            (0..JOURNALS).map(|journal| (contents(&store, journal).len() * OWNER_BYTES) as u64).sum();
        assert!(bytes <= 2 * live + u64::from(JOURNALS) * (256 << 10), "{bytes} bytes for {live} live");
        store.close().unwrap();
    }
    assert!(most as u64 > WINDOW / 2, "too little was stored");
}
