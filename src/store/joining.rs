//! Limits within which small blocks are merged.

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::{KindId, WindowId};

/// Default span of stream time within which small blocks are merged.
const SPAN: Duration = Duration::from_mins(5);

/// The spans of stream time within which small blocks are merged, for each kind. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Joining {
    unnamed: MergeBounds,
    named: Arc<[(KindId, MergeBounds)]>,
}

/// In ms of stream time.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeBounds {
    /// Span of one merged block: the arrival times of its identities are known only this precisely.
    pub span_ms: i64,
    /// Length of the Bloom filter slices. A block belongs to the slice of its first identity, so all of its parts
    /// must belong to that slice.
    pub slice_ms: i64,
}

impl MergeBounds {
    fn new((span, slice_ms): (Duration, Option<i64>)) -> Self {
        let span_ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1);
        Self { span_ms, slice_ms: slice_ms.unwrap_or(i64::MAX).max(1) }
    }

    /// Whether a border of a span or of a slice lies between the first stream times of two blocks. Such blocks are not
    /// merged.
    pub(super) fn separates(self, one_ms: i64, other_ms: i64) -> bool {
        [self.span_ms, self.slice_ms]
            .iter()
            .any(|span| one_ms.div_euclid(*span) != other_ms.div_euclid(*span))
    }
}

impl Joining {
    /// For each kind: the span (a small part of the window, for example a hundredth), and the length of its filter
    /// slices in ms. Slices are aligned to the epoch, and no merged block crosses the border of a slice.
    #[must_use]
    pub fn new(
        unnamed: (Duration, Option<i64>),
        named: impl IntoIterator<Item = (KindId, (Duration, Option<i64>))>,
    ) -> Self {
        let named = named.into_iter().map(|(kind, of)| (kind, MergeBounds::new(of))).collect();
        Self { unnamed: MergeBounds::new(unnamed), named }
    }

    pub(super) fn of(&self, window: WindowId) -> MergeBounds {
        let kind = window.kind();
        self.named.iter().find(|(own, _)| *own == kind).map_or(self.unnamed, |(_, bounds)| *bounds)
    }
}

impl Default for Joining {
    fn default() -> Self {
        Self::new((SPAN, None), [])
    }
}
