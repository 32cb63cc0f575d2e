//! The part of a checkpoint that describes one window.

use super::FilterLayout;
use crate::dedupe::identity::KindId;

/// Latest stream time, in epoch milliseconds, of the owners that limits dropped before they expired;
/// `None` when there are none, or when all of them would have expired by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// In the exact part.
    pub exact_ms: Option<i64>,
    /// In the filters.
    pub filters_ms: Option<i64>,
}

/// State of a window that a restart must take over from the checkpoint, because blocks do not contain it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowCheckpoint {
    /// The kind of the window.
    pub kind: KindId,
    /// What limits dropped before it expired.
    pub dropped: Dropped,
    /// The layout of its filters.
    pub layout: Option<FilterLayout>,
    /// Ids from before this stream time may be missing, for a reason other than limits.
    pub incomplete_ms: Option<i64>,
}

/// The details of the windows, kind by kind, in at most `left` bytes. What limits dropped takes precedence over layouts, because a shorter
/// window is reported to operators.
pub(super) fn render_windows(windows: &[WindowCheckpoint], mut left: usize) -> String {
    let mut fits = |text: String| {
        let fits = text.len() <= left;
        left -= if fits { text.len() } else { 0 };
        if fits { text } else { String::new() }
    };
    let name = |it: &WindowCheckpoint| match it.kind {
        // The unnamed kind comes first, so it needs no number.
        KindId::UNNAMED => String::new(),
        kind => format!(";k={}", kind.number()),
    };
    let mut parts: Vec<String> = windows
        .iter()
        .map(render_dropped)
        .zip(windows)
        .map(|(dropped, it)| if dropped.is_empty() { dropped } else { fits(name(it) + &dropped) })
        .collect();
    for (part, it) in parts.iter_mut().zip(windows) {
        let Some(layout) = &it.layout else { continue };
        let named = if part.is_empty() { name(it) } else { String::new() };
        part.push_str(&fits(format!("{named};w={layout}")));
    }
    parts.concat()
}

fn render_dropped(it: &WindowCheckpoint) -> String {
    let Dropped { exact_ms, filters_ms } = it.dropped;
    let incomplete = it.incomplete_ms.map(|ms| format!(";c={ms}")).unwrap_or_default();
    if it.dropped == Dropped::default() {
        return incomplete;
    }
    format!(";l={},{}{incomplete}", exact_ms.unwrap_or(0), filters_ms.unwrap_or(0))
}

pub(super) fn parse_dropped(value: &str) -> Option<Dropped> {
    let (exact, filters) = value.split_once(',')?;
    let ms = |text: &str| text.parse::<i64>().ok().map(|ms| (ms != 0).then_some(ms));
    Some(Dropped { exact_ms: ms(exact)?, filters_ms: ms(filters)? })
}
