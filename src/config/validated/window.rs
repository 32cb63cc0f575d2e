//! How long an id is stored.

use std::time::Duration;

use crate::config::as_typed::TypedWindow;
use crate::config::choices::{OnProbable, Overflow, WindowTime};
use crate::config::reading::Reading;
use crate::config::units::duration_text;

/// How long an id is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// How long it is stored exactly, at least one second.
    pub exact: Duration,
    /// How long it is stored in Bloom filters, at least `exact`.
    pub bloom: Duration,
    /// The number of slices of the Bloom filters, 1 to 64. A slice expires as a whole.
    pub slices: u32,
    /// The false-positive rate of the Bloom filters: above 0, at most 0.5.
    pub false_positive_rate: f64,
    /// The policy for a record whose id only the Bloom filters report as seen.
    pub on_probable: OnProbable,
    /// Maximum number of ids in this process, at least 1.
    pub max_ids: u64,
    /// The behaviour at `max_ids`.
    pub overflow: Overflow,
    /// Maximum memory of index and filters in this process, in bytes, at least 16 MiB.
    pub max_memory: Option<u64>,
    /// The clock that advances the window.
    pub time: WindowTime,
}

/// With less, the smallest tables of a few dozen partitions would not fit.
const LEAST_MEMORY: u64 = 16 << 20;
/// The index stores 38 bits of offset distance for each identity.
const MOST_IDS: u64 = 1 << 38;
/// A look-up checks every slice, and each slice takes a share of the false-positive rate.
const MOST_SLICES: u64 = 64;

pub(super) fn validate(typed: &TypedWindow, reading: &mut Reading<'_>) -> Option<Window> {
    let second = Duration::from_secs(1);
    let exact = reading.duration("window.exact", typed.exact.as_deref(), second);
    let bloom = match &typed.bloom {
        Some(text) => reading.duration("window.bloom", Some(text), second),
        None => exact,
    };
    if let (Some(exact), Some(bloom)) = (exact, bloom) {
        check_bloom_length(("window.bloom", bloom), ("window.exact", exact), reading);
    }
    let slices = reading.whole("window.slices", typed.slices.as_deref(), 1..=MOST_SLICES);
    let rate = rate("window.false_positive_rate", typed.false_positive_rate.as_deref(), reading);
    let on_probable = reading.choice("window.on_probable", typed.on_probable.as_deref());
    let max_ids = reading.whole("window.max_ids", typed.max_ids.as_deref(), 1..=MOST_IDS);
    let overflow = reading.choice("window.overflow", typed.overflow.as_deref());
    let max_memory = typed
        .max_memory
        .as_deref()
        .and_then(|text| reading.bytes("window.max_memory", Some(text), LEAST_MEMORY));
    let time = reading.choice("window.time", typed.time.as_deref());
    Some(Window {
        exact: exact?,
        bloom: bloom?,
        slices: u32::try_from(slices?).unwrap_or(u32::MAX),
        false_positive_rate: rate?,
        on_probable: on_probable?,
        max_ids: max_ids?,
        overflow: overflow?,
        max_memory,
        time: time?,
    })
}

pub(super) fn check_bloom_length(
    (key, bloom): (&str, Duration),
    (exact_key, exact): (&str, Duration),
    reading: &mut Reading<'_>,
) {
    if bloom >= exact {
        return;
    }
    let (exact_text, bloom_text) = (duration_text(exact), duration_text(bloom));
    let what = format!("is shorter than {exact_key} = \"{exact_text}\"");
    let remedy = format!("set {key} = \"{exact_text}\" or longer, or leave it out");
    reading.reject(key, Some(&bloom_text), &what, &remedy);
}

pub(super) fn rate(key: &str, value: Option<&str>, reading: &mut Reading<'_>) -> Option<f64> {
    let remedy = "give a number above 0 and at most 0.5, as in 1e-9";
    let text = reading.required(key, value, remedy)?;
    let rate = text.trim().parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate <= 0.5);
    if rate.is_none() {
        reading.reject(key, Some(text), "is out of range", remedy);
    }
    rate
}
