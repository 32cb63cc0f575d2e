//! Limits within which the owners of small transactions are joined in one run.

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::{KindId, WindowId};

/// Default span of stream time of a run.
const SPAN: Duration = Duration::from_mins(5);

/// The spans of stream time within which owners are joined in one run, for each kind. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Joining {
    unnamed: MergeSpan,
    named: Arc<[(KindId, MergeSpan)]>,
}

/// The span of one run, ms of stream time: the arrival times of its owners are known only this precisely.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeSpan(i64);

impl MergeSpan {
    /// What is appended at once is a run of its own.
    pub(super) const NONE: Self = Self(0);

    fn new(span: Duration) -> Self {
        Self(i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1))
    }

    /// Whether a border of a span lies between the first times of what is appended. Their owners are not joined.
    pub(super) fn separates(self, one_ms: i64, other_ms: i64) -> bool {
        let span_of = |ms: i64| ms.checked_div_euclid(self.0);
        span_of(one_ms).is_none() || span_of(one_ms) != span_of(other_ms)
    }
}

impl Joining {
    /// For each kind the span: a small part of the window, for example a hundredth.
    pub fn new(unnamed: Duration, named: impl IntoIterator<Item = (KindId, Duration)>) -> Self {
        let named = named.into_iter().map(|(kind, span)| (kind, MergeSpan::new(span))).collect();
        Self { unnamed: MergeSpan::new(unnamed), named }
    }

    pub(super) fn of(&self, window: WindowId) -> MergeSpan {
        let kind = window.kind();
        self.named.iter().find(|(own, _)| *own == kind).map_or(self.unnamed, |(_, span)| *span)
    }
}

impl Default for Joining {
    fn default() -> Self {
        Self::new(SPAN, [])
    }
}
