//! The declaration of a metric.

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
    /// Whether the label `kind`, the name of a kind in `[[kinds]]`, precedes `label`.
    pub by_kind: bool,
    /// One sentence.
    pub help: &'static str,
}

impl Row {
    pub(in crate::metrics) const fn new(
        name: &'static str,
        kind: MetricKind,
        unit: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind, unit, label: None, by_kind: false, help }
    }

    pub(in crate::metrics) const fn by(self, name: &'static str, values: &'static [&'static str]) -> Self {
        Self { label: Some(Label { name, values }), ..self }
    }

    pub(super) const fn by_kind(self) -> Self {
        Self { by_kind: true, ..self }
    }

    /// The names of its labels, in order.
    #[must_use]
    pub fn labels(&self) -> Vec<&'static str> {
        self.by_kind.then_some("kind").into_iter().chain(self.label.map(|label| label.name)).collect()
    }
}
