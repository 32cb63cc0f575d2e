//! Calls into the engine that come back: a panic becomes a value, and a hang ends the waiting.
//!
//! sled 0.34 answers damage in three ways (of 50 truncated stores 26 panicked, 22 returned an
//! error), and on some it never returns. All of them must end in the same place.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// How guarded work failed to return.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// It panicked, with this message and place.
    #[error("the engine panicked: {0}")]
    Panic(String),
    /// It gave no sign of life for this long, or its thread could not be started.
    #[error("the engine gave no sign of life for {0:?}")]
    Hung(Duration),
}

/// Runs one call of the engine; `Err` is the message and place of its panic.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    CATCHING.set(outer);
    result.map_err(|_| CAUGHT.take().unwrap_or_else(|| "no message".to_owned()))
}

/// Says that long work still moves.
pub(super) struct Progress<T>(Sender<Beat<T>>);

enum Beat<T> {
    Alive,
    Done(Result<T, String>),
}

impl<T> Progress<T> {
    /// The waiting begins anew. Once nobody waits any more this has no effect.
    pub(super) fn alive(&self) {
        drop(self.0.send(Beat::Alive));
    }
}

/// Runs `work` in its own thread and waits until it returns, panics, or is silent for `silence`.
/// A hung thread is left behind: there is no safe way to end it.
pub(super) fn guarded<T, W>(name: &str, silence: Duration, work: W) -> Result<T, Fault>
where
    T: Send + 'static,
    W: FnOnce(&Progress<T>) -> T + Send + 'static,
{
    let (sender, receiver) = channel();
    let progress = Progress(sender);
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = caught(|| work(&progress));
        drop(progress.0.send(Beat::Done(result)));
    });
    if let Err(e) = spawned {
        return Err(Fault::Panic(format!("cannot start a thread: {e}")));
    }
    loop {
        match receiver.recv_timeout(silence) {
            Ok(Beat::Alive) => {}
            Ok(Beat::Done(result)) => return result.map_err(Fault::Panic),
            Err(RecvTimeoutError::Timeout) => return Err(Fault::Hung(silence)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Fault::Panic("its thread vanished".to_owned()));
            }
        }
    }
}

/// Teaches the process's panic hook about the engine: a panic that [`caught`] turns into a value is
/// not printed, and one in the engine's own threads becomes a log line that says what it means.
/// Everything else goes to the hook that was there before.
pub(super) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if CATCHING.get() {
                CAUGHT.set(Some(describe(panic)));
            } else if in_engine(panic) {
                tracing::error!(
                    panic = describe(panic),
                    "a thread of the local store's engine panicked; the next call of the store will report it"
                );
            } else {
                before(panic);
            }
        }));
    });
}

fn in_engine(panic: &PanicHookInfo<'_>) -> bool {
    panic.location().is_some_and(|at| at.file().contains("/sled-"))
}

fn describe(panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("no message");
    panic.location().map_or_else(|| message.to_owned(), |at| format!("{message} ({at})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_value_with_its_message() {
        install_hook();
        let fault = guarded("test", Duration::from_secs(5), |_: &Progress<()>| panic!("page 7")).unwrap_err();
        assert!(fault.to_string().contains("page 7") && fault.to_string().contains("guard.rs"), "{fault}");
        assert_eq!(caught(|| 5), Ok(5));
    }

    #[test]
    fn a_hang_ends_the_waiting_and_progress_prolongs_it() {
        let (release, released) = channel::<()>();
        let silence = Duration::from_millis(50);
        let fault = guarded("test", silence, move |_| released.recv().is_ok());
        assert_eq!(fault, Err(Fault::Hung(silence)));
        drop(release);
        let sum = guarded("test", Duration::from_secs(5), |progress| {
            (0..100).inspect(|_| progress.alive()).sum::<u32>()
        });
        assert_eq!(sum, Ok(4950));
    }
}
