//! The findings of a clean partition, counted and sampled.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use super::compare::Outcome;
use super::entry::Place;
use super::record::Differing;
use super::{Offset, PartitionId};

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A raw record that clean must hold is missing.
    Lost,
    /// A clean record repeats one that clean already holds.
    Duplicated,
    /// A clean record has another position, relative to the others, than its raw record.
    OutOfOrder,
    /// A clean record differs from its raw record, in its bytes or its timestamp.
    Altered,
    /// A clean record has no raw record.
    Phantom,
}

impl Kind {
    /// All kinds, in the order of a report.
    pub const ALL: [Self; 5] = [Self::Lost, Self::Duplicated, Self::OutOfOrder, Self::Altered, Self::Phantom];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::OutOfOrder => "out of order",
            Self::Altered => "altered",
            Self::Phantom => "phantom",
        })
    }
}

/// How many records of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Raw records that clean must hold and does not hold.
    pub lost: u64,
    /// Clean records that repeat another clean record.
    pub duplicated: u64,
    /// The minimum number of clean records that must have moved to explain the order.
    pub out_of_order: u64,
    /// Clean records that differ from their raw record.
    pub altered: u64,
    /// Clean records without a raw record.
    pub phantom: u64,
}

impl Counts {
    /// Whether all counts are zero.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    /// The count of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        let mut copy = *self;
        *copy.slot(kind)
    }

    fn slot(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Lost => &mut self.lost,
            Kind::Duplicated => &mut self.duplicated,
            Kind::OutOfOrder => &mut self.out_of_order,
            Kind::Altered => &mut self.altered,
            Kind::Phantom => &mut self.phantom,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        for kind in Kind::ALL {
            *self.slot(kind) += other.of(kind);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            write!(f, "{}{kind} {}", if at == 0 { "" } else { ", " }, self.of(kind))?;
        }
        Ok(())
    }
}

/// One finding, with its coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// Partition of the raw record, or of the clean record where there is no raw record. Where several raw topics are
    /// compared, its number in [`Report::logs`](crate::Report::logs).
    pub partition: PartitionId,
    /// Offset of the raw record concerned, where there is one.
    pub raw: Option<Offset>,
    /// Offset of the clean record concerned, where there is one.
    pub clean: Option<Offset>,
    /// Partition of that, the same as `partition` unless several raw topics are compared.
    pub clean_partition: PartitionId,
    /// The fields that differ, of an altered record.
    pub fields: Differing,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: partition {}", self.kind, self.partition)?;
        if let Some(raw) = self.raw {
            write!(f, ", raw offset {raw}")?;
        }
        if let Some(clean) = self.clean {
            write!(f, ", clean offset {clean}")?;
        }
        self.fields.fmt(f)
    }
}

/// The order of findings in a report: by the step that found them, then by coordinates.
pub(super) type SortKey = (Step, Offset, Offset);

/// The steps of a comparison that add findings, in the order of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Copies, by clean offset.
    Copies,
    /// Repeats within the window, by the first record of their id.
    Repeats,
    /// Clean records without a raw record, by clean offset.
    Unmatched,
    /// Lost records, by raw offset.
    Losses,
}

/// Counts findings and keeps the first ones of each kind, whatever order they are added in.
#[derive(Debug)]
pub(super) struct Findings {
    /// The number of the partition in the rows.
    number: PartitionId,
    partition: PartitionId,
    limit: usize,
    pub counts: Counts,
    /// Records that are no findings: [`Outcome::late_or_twice`](super::Outcome::late_or_twice).
    pub late_or_twice: u64,
    /// Lost records before the first record in clean: [`Outcome::lost_at_start`](super::Outcome::lost_at_start).
    pub lost_at_start: u64,
    kept: BTreeMap<Kind, BTreeMap<SortKey, Finding>>,
}

impl Findings {
    /// `partition` is reported in place of `number`.
    pub fn new(number: PartitionId, partition: PartitionId, limit: usize) -> Self {
        let (counts, kept) = (Counts::default(), BTreeMap::new());
        Self { number, partition, limit, counts, late_or_twice: 0, lost_at_start: 0, kept }
    }

    pub fn add(
        &mut self,
        key: SortKey,
        kind: Kind,
        raw: Option<Offset>,
        clean: Option<Place>,
        fields: Differing,
    ) {
        *self.counts.slot(kind) += 1;
        let kept = self.kept.entry(kind).or_default();
        if kept.len() == self.limit && kept.last_key_value().is_none_or(|(last, _)| *last < key) {
            return;
        }
        let partition = self.partition;
        let clean_partition =
            clean.map_or(partition, |(number, _)| if number == self.number { partition } else { number });
        let clean = clean.map(|(_, offset)| offset);
        kept.insert(key, Finding { kind, partition, raw, clean, clean_partition, fields });
        if kept.len() > self.limit {
            kept.pop_last();
        }
    }

    /// This outcome with the findings.
    pub fn complete(&self, outcome: &Outcome) -> Outcome {
        let Self { counts, late_or_twice, lost_at_start, .. } = *self;
        Outcome {
            counts,
            late_or_twice,
            lost_at_start,
            samples: self.samples(),
            unequal: Vec::new(),
            ..*outcome
        }
    }

    /// The first findings of each kind, in the order of a report.
    fn samples(&self) -> Vec<Finding> {
        let mut all: Vec<_> = self.kept.values().flatten().collect();
        all.sort_by_key(|(key, finding)| (**key, matches!(finding.kind, Kind::OutOfOrder)));
        all.into_iter().map(|(_, finding)| *finding).collect()
    }
}
