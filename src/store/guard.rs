//! Guarded engine calls: a panic becomes an error, and a wait for a hung call ends after a deadline.
//!
//! sled 0.34 reacts to damage in three ways: of 50 truncated stores, 26 panicked and 22 returned an error, and some
//! calls never return. All of these must be handled in the same way.

use crate::units::duration_text;
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

/// Why guarded work did not return.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum GuardFault {
    /// It panicked, with this message and place.
    #[error("the engine panicked: {0}")]
    Panic(String),
    /// It was not started, because the system has no thread for it. The engine was not called.
    #[error("cannot start a thread: {0}")]
    NoThread(String),
    /// It made no progress for this long.
    #[error("the engine made no progress for {}", duration_text(*.0))]
    Hung(Duration),
}

/// Runs one call of the engine and catches a panic. `Err` contains the panic's message and location.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    CATCHING.set(outer);
    result.map_err(|_| CAUGHT.take().unwrap_or_else(|| "no message".to_owned()))
}

/// Reports that long work still makes progress.
pub(super) struct WorkProgress<T>(Sender<Signal<T>>);

enum Signal<T> {
    Alive,
    Done(Result<T, String>),
}

impl<T> WorkProgress<T> {
    /// Restarts the deadline. Has no effect once the caller has stopped waiting.
    pub(super) fn report(&self) {
        drop(self.0.send(Signal::Alive));
    }
}

/// Runs `work` in its own thread and waits until it returns, panics, or reports no progress for `deadline`. A hung
/// thread is left running: there is no safe way to end it.
pub(super) fn run_guarded<T, W>(name: &str, deadline: Duration, work: W) -> Result<T, GuardFault>
where
    T: Send + 'static,
    W: FnOnce(&WorkProgress<T>) -> T + Send + 'static,
{
    let (sender, receiver) = channel();
    let progress = WorkProgress(sender);
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = catch_panic(|| work(&progress));
        drop(progress.0.send(Signal::Done(result)));
    });
    if let Err(e) = spawned {
        return Err(GuardFault::NoThread(e.to_string()));
    }
    loop {
        match receiver.recv_timeout(deadline) {
            Ok(Signal::Alive) => {}
            Ok(Signal::Done(result)) => return result.map_err(GuardFault::Panic),
            Err(RecvTimeoutError::Timeout) => return Err(GuardFault::Hung(deadline)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(GuardFault::Panic("its thread ended without a result".to_owned()));
            }
        }
    }
}

/// Installs a panic hook. A panic that [`catch_panic`] turns into a value is not printed. A panic in one of the
/// engine's own threads is logged. All others go to the previous hook.
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
                    "a thread of the local store's engine panicked; the next call of the store returns the error"
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
    fn a_panic_becomes_an_error_with_its_message() {
        install_hook();
        let fault =
            run_guarded("test", Duration::from_secs(5), |_: &WorkProgress<()>| panic!("page 7")).unwrap_err();
        assert!(fault.to_string().contains("page 7") && fault.to_string().contains("guard.rs"), "{fault}");
        assert_eq!(catch_panic(|| 5), Ok(5));
    }

    #[test]
    fn a_hang_ends_the_wait_and_progress_extends_it() {
        let (release, released) = channel::<()>();
        let deadline = Duration::from_millis(50);
        let fault = run_guarded("test", deadline, move |_| released.recv().is_ok());
        assert_eq!(fault, Err(GuardFault::Hung(deadline)));
        drop(release);
        let sum = run_guarded("test", Duration::from_secs(5), |progress| {
            (0..100).inspect(|_| progress.report()).sum::<u32>()
        });
        assert_eq!(sum, Ok(4950));
    }
}
