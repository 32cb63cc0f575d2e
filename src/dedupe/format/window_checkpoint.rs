//! The part of a checkpoint that describes one window.

use crate::dedupe::identity::KindId;

/// State of a window that a restart must take over from the checkpoint, because blocks do not contain it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowCheckpoint {
    /// The kind of the window.
    pub kind: KindId,
    /// Latest stream time, in epoch milliseconds, of the owners that limits dropped before they expired; `None` when there are
    /// none, or when all of them would have expired by now.
    pub dropped_ms: Option<i64>,
    /// Ids from before this stream time may be missing, for a reason other than limits.
    pub incomplete_ms: Option<i64>,
}

/// The details of the windows, kind by kind, in at most `left` bytes.
pub(super) fn render_windows(windows: &[WindowCheckpoint], mut left: usize) -> String {
    let mut text = String::new();
    for part in windows.iter().map(render).filter(|part| !part.is_empty()) {
        if let Some(rest) = left.checked_sub(part.len()) {
            text.push_str(&part);
            left = rest;
        }
    }
    text
}

fn render(it: &WindowCheckpoint) -> String {
    let field = |key: &str, ms: Option<i64>| ms.map(|ms| format!(";{key}={ms}")).unwrap_or_default();
    let details = field("l", it.dropped_ms) + &field("c", it.incomplete_ms);
    match it.kind {
        // The unnamed kind comes first, so it needs no number.
        KindId::UNNAMED => details,
        _ if details.is_empty() => details,
        kind => format!(";k={}{details}", kind.number()),
    }
}
