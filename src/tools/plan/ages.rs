//! The window that the ages of copies recommend, and its costs.

use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;
use serde::Serialize;

use super::text::{line, section, size};
use super::{CapacityPlan, Workload, seconds};
use crate::units::{duration_text, measured_text, seconds_text};

/// The shares of copies that are reported, in ten-thousandths.
pub const SHARES: [u64; 3] = [9_900, 9_990, 9_999];
/// Fewest copies of which one is beyond each of these shares.
const NEEDED: [u64; 3] = [100, 1_000, 10_000];
const NAMES: [&str; 3] = ["99 %", "99.9 %", "99.99 %"];

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredAges {
    /// Copies whose age is known.
    pub copies: u64,
    /// The ages that [`SHARES`] of them do not exceed.
    #[serde(skip)]
    pub within: [Duration; 3],
    /// The longest age.
    #[serde(serialize_with = "seconds", rename = "longest_seconds")]
    pub longest: Duration,
    /// The time of the records that were read. Later copies are not seen.
    pub covered_seconds: f64,
    /// Whether these are all records of the topic.
    pub is_whole: bool,
    /// Of so many ids one was followed.
    pub one_in: u64,
    /// Most ids that are followed.
    pub most_ids: u64,
}

/// The windows that find copies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WindowAdvice {
    /// What it relies on.
    #[serde(flatten)]
    pub measured: MeasuredAges,
    /// The window in seconds that finds each of [`SHARES`]; `None` if there are too few copies for that share.
    pub seconds: [Option<f64>; 3],
    /// The recommended `window.exact` in seconds, which finds all copies that were read; `None` if there are too few for any share.
    pub exact_seconds: Option<f64>,
    /// What it costs.
    pub costs: Option<WindowCosts>,
}

/// What a window costs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WindowCosts {
    /// Memory in topic scope.
    pub memory_bytes: u64,
    /// Local state.
    pub disk_bytes: u64,
    /// One replica of the state topic.
    pub state_topic_bytes: u64,
}

impl WindowAdvice {
    /// For ages that were measured on a topic with this load.
    #[must_use]
    pub fn of(measured: MeasuredAges, load: Workload) -> Self {
        let mut seconds = [None; 3];
        for (at, (age, needed)) in seconds.iter_mut().zip(measured.within.iter().zip(NEEDED)) {
            *at = (measured.copies >= needed).then_some(age.as_secs_f64());
        }
        let exact = seconds.iter().any(Option::is_some).then(|| rounded_up(measured.longest));
        let exact_seconds = exact.map(|exact| exact.as_secs_f64());
        Self { measured, seconds, exact_seconds, costs: exact.map(|exact| WindowCosts::of(exact, load)) }
    }
}

impl WindowCosts {
    fn of(exact: Duration, load: Workload) -> Self {
        let plan = CapacityPlan::of(Workload { exact, bloom: exact, slots: None, ..load });
        Self {
            memory_bytes: plan.memory.total_bytes,
            disk_bytes: plan.disk_bytes,
            state_topic_bytes: plan.state_topic.bytes,
        }
    }
}

/// Rounds up to whole seconds, minutes, hours or days; to 1 s at least, the shortest window.
fn rounded_up(age: Duration) -> Duration {
    let seconds = age.as_millis().div_ceil(1_000).max(1);
    let units = [(60, 1), (3_600, 60), (172_800, 3_600)];
    let unit = units.into_iter().find(|(most, _)| seconds <= *most).map_or(86_400, |(_, unit)| unit);
    let rounded = u64::try_from(seconds.div_ceil(unit) * unit).unwrap_or(u64::MAX);
    Duration::from_secs(rounded)
}

impl fmt::Display for WindowAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeasuredAges { copies, longest, one_in, most_ids, .. } = self.measured;
        section(f, &format!("ages of {} copies", HumanCount(copies)))?;
        if one_in > 1 {
            let followed = format!("one id in {one_in}, because at most {} are", HumanCount(most_ids));
            line(f, "followed", &followed)?;
        }
        let window = |age| duration_text(rounded_up(age));
        for (name, (age, needed)) in NAMES.iter().zip(self.measured.within.into_iter().zip(NEEDED)) {
            let few = || format!("not known: {} copies are needed", HumanCount(needed));
            let text = if copies >= needed { window(age) } else { few() };
            line(f, &format!("{name} found by a window of"), &text)?;
        }
        if copies > 0 {
            let all = format!("{}; the longest age is {}", window(longest), measured_text(longest));
            line(f, "all found by a window of", &all)?;
            line(f, "resolution", "1/32 of an age, then rounded up to seconds, minutes, hours or days")?;
        }
        line(f, "not seen", &self.not_seen())?;
        line(f, "window.exact", &self.recommended())?;
        self.costs.map_or(Ok(()), |costs| line(f, "costs of that window", &costs.to_string()))
    }
}

impl WindowAdvice {
    /// The recommended `window.exact`, if it is longer than `exact`.
    #[must_use]
    pub fn longer_than(&self, exact: Duration) -> Option<Duration> {
        let recommended = Duration::try_from_secs_f64(self.exact_seconds?).ok()?;
        (recommended > exact).then_some(recommended)
    }

    fn not_seen(&self) -> String {
        let covered = seconds_text(self.measured.covered_seconds);
        if self.measured.is_whole {
            format!("copies later than {covered}, the time of the records in the topic (its retention)")
        } else {
            format!("copies later than {covered}, the time of the records that were read; --full reads all")
        }
    }

    fn recommended(&self) -> String {
        match self.exact_seconds {
            Some(seconds) => format!("at least {}", seconds_text(seconds)),
            None => format!("no recommendation: {} copies are needed", NEEDED.iter().min().unwrap_or(&0)),
        }
    }
}

impl fmt::Display for WindowCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [memory, disk, topic] = [self.memory_bytes, self.disk_bytes, self.state_topic_bytes].map(size);
        write!(f, "{memory} of memory, {disk} of local state, {topic} of state topic")
    }
}
