//! The exit codes of the process.

use std::io::Write as _;

/// The exit code of the process. The numbers are a stable interface for scripts and orchestrators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done, or stopped by SIGTERM or SIGINT.
    Done = 0,
    /// Failed, or `audit` found a difference.
    Failed = 1,
    /// The command line or the configuration is invalid.
    Usage = 2,
    /// A start-up check failed: a topic or a permission is missing, a topic has the wrong shape, or the
    /// brokers reject the connection.
    StartUp = 3,
    /// The local state is unusable: the disk fails, another process holds it, or the hash differs.
    State = 4,
    /// Another process uses the same group and instance name.
    Fenced = 5,
    /// Kafka needs an operator: missing permissions, a deleted topic, or offsets that contradict the state.
    Operator = 6,
}

impl Exit {
    /// The number returned to the operating system.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Ends the process with this code. Writes buffered output first, and runs no exit handlers.
    ///
    /// OpenSSL has an exit handler that frees what it has stored for each thread. A thread that ends at the same time frees it a second
    /// time. A stop leaves threads behind: the one that has returned the last result, and those in a call that has taken too long.
    #[expect(unsafe_code, reason = "_exit is a function of the C library")]
    pub fn end(self) -> ! {
        std::io::stdout().flush().ok();
        // SAFETY: it ends the process at once. Nothing is left to be done: files are written when their owners are dropped.
        unsafe { libc::_exit(self.code().into()) }
    }
}
