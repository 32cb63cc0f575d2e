//! Up to where small blocks may be joined.

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::{KindId, PartitionId};

/// Small blocks are joined within this stretch of stream time, unless told otherwise.
const SPAN: Duration = Duration::from_mins(5);

/// Within which stretches of stream time small blocks are joined, for each kind. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Joining {
    unnamed: Stretch,
    named: Arc<[(KindId, Stretch)]>,
}

/// In ms of stream time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    /// A reader of a block knows the time of its identities no better than that.
    pub span: i64,
    /// A block is filed in the slice of its first identity, and so must each of its parts have been.
    pub slice: i64,
}

impl Stretch {
    fn new((span, slice_ms): (Duration, Option<i64>)) -> Self {
        let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1);
        Self { span, slice: slice_ms.unwrap_or(i64::MAX).max(1) }
    }
}

impl Joining {
    /// For each kind a stretch, a small part of its window, a hundredth say; and the length of the slices that its
    /// filters are made by, in ms: over the border between two, since the epoch, nothing is joined.
    #[must_use]
    pub fn new(
        unnamed: (Duration, Option<i64>),
        named: impl IntoIterator<Item = (KindId, (Duration, Option<i64>))>,
    ) -> Self {
        let named = named.into_iter().map(|(kind, of)| (kind, Stretch::new(of))).collect();
        Self { unnamed: Stretch::new(unnamed), named }
    }

    pub(super) fn of(&self, filed: PartitionId) -> Stretch {
        let (kind, _) = KindId::of_filed(filed);
        self.named.iter().find(|(own, _)| *own == kind).map_or(self.unnamed, |(_, stretch)| *stretch)
    }
}

impl Default for Joining {
    fn default() -> Self {
        Self::new((SPAN, None), [])
    }
}
