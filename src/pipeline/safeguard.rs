//! The rules that the promise rests on, each by name: a test leaves one out and sees that something goes wrong.

use super::options::Options;

/// A rule that a test can leave out. A process that serves leaves out none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safeguard {
    /// Missing markers are waited for, and leftovers are looked for (`torn`).
    Markers,
    /// After leftovers were aborted, the three logs are made to agree (`repair`).
    Agreement,
    /// A record beyond the expected one is believed only when it is proven (`order`).
    Gaps,
    /// A record below the expected one is skipped.
    Repeats,
    /// A producer whose last result is unknown is replaced.
    Renewal,
    /// What an aborted transaction put into the windows is taken out again.
    Undo,
    /// Local state is compared with the last committed block (`recovery`).
    Tails,
    /// The end of a restore is compared with the last committed block (`complete`).
    RestoreEnd,
    /// Local owners at or beyond the committed offset are claims and not owners.
    Claims,
}

impl Options {
    /// Whether a rule is in force.
    #[must_use]
    pub(super) fn keeps(&self, rule: Safeguard) -> bool {
        self.without != Some(rule)
    }

    /// Whether leftovers are looked for and made to agree with what was committed.
    #[must_use]
    pub(super) fn repairs(&self) -> bool {
        self.keeps(Safeguard::Markers) && self.keeps(Safeguard::Agreement)
    }
}
