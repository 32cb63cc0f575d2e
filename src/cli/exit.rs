//! The exit codes of the process.

use std::io::Write as _;

/// The exit code of the process. The numbers are a stable interface for scripts and orchestrators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// The command has done its work.
    Done = 0,
    /// The command has done its work, and its answer is no.
    No = 1,
    /// To be corrected: what the user gave.
    Usage = 2,
    /// To be corrected: topics, permissions or credentials.
    StartUp = 3,
    /// To be corrected: a file or its disk.
    State = 4,
    /// To be corrected: another process with the same name.
    Fenced = 5,
    /// To be decided by an operator.
    Operator = 6,
    /// No other code applies.
    Failed = 7,
    /// A retry may succeed.
    Unreachable = 8,
}

impl Exit {
    /// The number returned to the operating system.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What the code means, in every command.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done; a service was stopped by SIGTERM, SIGINT or SIGHUP",
            Self::No => {
                "the answer is no: the audit has findings, the id is not stored, the instance is not ready"
            }
            Self::Usage => "the command line or the configuration is invalid",
            Self::StartUp => {
                "Kafka does not have or permit what is needed: a topic, its shape, a permission, the connection"
            }
            Self::State => "a local file cannot be used: the state, its disk, temporary files",
            Self::Fenced => "another process uses the same group and instance name",
            Self::Operator => "Kafka needs an operator: deleted records, a rewound group, a recreated topic",
            Self::Failed => "failed for another reason, which the last line contains",
            Self::Unreachable => "no broker answers",
        }
    }

    /// A text of `--help`, followed by the codes with which the command can end.
    pub(super) fn listed_below(text: &str, codes: &[Self]) -> String {
        let line = |exit: &Self| format!("  {}  {}", exit.code(), exit.meaning());
        let lines: Vec<_> = codes.iter().map(line).collect();
        format!("{text}\n\nExit codes:\n{}", lines.join("\n"))
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
