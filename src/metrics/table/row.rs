//! The declaration of a metric, and how its handle follows from it.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry,
};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// Never decreases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// The label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Name of the label, as exported.
    pub name: &'static str,
    /// Its values; empty when they are not known in advance.
    pub values: &'static [&'static str],
}

/// The declaration of one metric: its registration and its row in docs/metrics.md.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Name with prefix and unit, as exported.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// Base unit, or what is counted.
    pub unit: &'static str,
    /// Its label, if it has one.
    pub label: Option<Label>,
    /// Labels that precede `label`; their values come from the configuration.
    pub configured: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

impl Row {
    /// The row of a handle of type `H`.
    pub(super) const fn new<H: Declared>(name: &'static str, unit: &'static str, help: &'static str) -> Self {
        Self { name, kind: H::KIND, unit, label: None, configured: &[], help }
    }

    pub(super) const fn by(self, name: &'static str, values: &'static [&'static str]) -> Self {
        Self { label: Some(Label { name, values }), ..self }
    }

    pub(super) const fn configured(self, labels: &'static [&'static str]) -> Self {
        Self { configured: labels, ..self }
    }

    pub(super) const fn within(self, bounds: &'static [f64]) -> Self {
        Self { kind: MetricKind::Histogram(bounds), ..self }
    }

    /// The names of its labels, in order.
    fn labels(&self) -> Vec<&'static str> {
        self.configured.iter().copied().chain(self.label.map(|label| label.name)).collect()
    }

    fn options(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    fn bounds(&self) -> Vec<f64> {
        match self.kind {
            MetricKind::Histogram(bounds) => bounds.to_vec(),
            MetricKind::Counter | MetricKind::Gauge => Vec::new(),
        }
    }

    /// Creates the series whose labels are known in advance, at 0.
    fn at_zero<B: MetricVecBuilder>(&self, series: MetricVec<B>) -> MetricVec<B> {
        for value in self.label.iter().filter(|_| self.configured.is_empty()).flat_map(|label| label.values) {
            drop(series.with_label_values(&[*value]));
        }
        series
    }
}

/// A handle of the prometheus crate that a row declares.
pub(super) trait Declared: Collector + Clone + 'static {
    const KIND: MetricKind;

    fn create(row: &Row) -> prometheus::Result<Self>;
}

macro_rules! declared {
    ($($handle:ty: $kind:expr, |$row:ident| $create:expr;)+) => {$(
        impl Declared for $handle {
            const KIND: MetricKind = $kind;

            fn create($row: &Row) -> prometheus::Result<Self> { $create }
        }
    )+};
}

declared! {
    IntCounter: MetricKind::Counter, |row| Self::with_opts(row.options());
    IntCounterVec: MetricKind::Counter, |row| Ok(row.at_zero(Self::new(row.options(), &row.labels())?));
    Counter: MetricKind::Counter, |row| Self::with_opts(row.options());
    Gauge: MetricKind::Gauge, |row| Self::with_opts(row.options());
    GaugeVec: MetricKind::Gauge, |row| Ok(row.at_zero(Self::new(row.options(), &row.labels())?));
    Histogram: MetricKind::Histogram(&[]), |row| Self::with_opts(HistogramOpts::from(row.options()).buckets(row.bounds()));
}

/// The handle of a row, registered.
pub(super) fn register<H: Declared>(registry: &Registry, row: &Row) -> H {
    let handle = valid(H::create(row), row.name);
    valid(registry.register(Box::new(handle.clone())), row.name);
    handle
}

/// The prometheus crate rejects names and labels that are malformed or already registered. Those of the
/// table are constants, and a test registers them all, so an error is a bug in this module.
pub(in crate::metrics) fn valid<T>(result: prometheus::Result<T>, what: &str) -> T {
    match result {
        Ok(it) => it,
        Err(error) => panic!("metrics table: {what}: {error}"),
    }
}

/// Declares metrics that belong together: a struct of their handles, its rows for the documentation, and its registration. With
/// `of`, all of them have one type, and `all` returns them.
macro_rules! metrics {
    ($(#[$doc:meta])* $group:ident {
        $($field:ident: $handle:ty = $name:literal, $unit:literal, $help:literal $(, $with:ident($($value:expr),*))*;)+
    }) => {
        $(#[$doc])*
        pub(crate) struct $group { $(pub(crate) $field: $handle,)+ }

        impl $group {
            pub(in crate::metrics) const ROWS: &'static [Row] = &[$(
                Row::new::<$handle>($name, $unit, $help)$(.$with($($value),*))*
            ),+];

            pub(in crate::metrics) fn new(registry: &Registry) -> Self {
                Self {$(
                    $field: register(registry, &Row::new::<$handle>($name, $unit, $help)$(.$with($($value),*))*),
                )+}
            }
        }
    };
    ($(#[$doc:meta])* $group:ident of $handle:ty {
        $($field:ident = $name:literal, $unit:literal, $help:literal $(, $with:ident($($value:expr),*))*;)+
    }) => {
        metrics! {
            $(#[$doc])*
            $group { $($field: $handle = $name, $unit, $help $(, $with($($value),*))*;)+ }
        }

        impl $group {
            pub(in crate::metrics) fn all(&self) -> [&$handle; Self::ROWS.len()] { [$(&self.$field),+] }
        }
    };
}
pub(super) use metrics;
