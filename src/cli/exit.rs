//! How the process ends.

use std::process::ExitCode;

/// How the process ends. The numbers are a contract with whoever starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done, or stopped as told.
    Done = 0,
    /// Failed, or an audit found something.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// A check at the start failed: a topic or a right is missing, a topic has the wrong shape, or the
    /// brokers refuse the connection.
    StartUp = 3,
    /// The local state cannot be used: the disk, or the hash does not fit.
    State = 4,
    /// Another process uses the same group and instance name.
    Fenced = 5,
    /// Kafka refused something that only an operator can mend: rights, a deleted topic, offsets
    /// that contradict the state.
    Operator = 6,
}

impl Exit {
    /// The number given to the system.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
