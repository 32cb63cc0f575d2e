//! The exit codes of the process.
use std::process::ExitCode;

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
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
