//! By what duplicates are counted, for the status page.

use std::fmt;
use std::str::FromStr;

use crate::dedupe::{IdPart, IdSource, IdSourceError, LoneSource};

/// What contains the values by which duplicates are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsightSource {
    /// The number of the partition.
    Partition,
    /// A part of the record.
    Field(IdSource),
}

impl InsightSource {
    /// Whether its values are shown without `http.show_values`.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Partition | Self::Field(IdSource::Header(_)))
    }
}

impl FromStr for InsightSource {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        if text == "partition" {
            Ok(Self::Partition)
        } else {
            text.parse().map(|LoneSource(it)| Self::Field(it))
        }
    }
}

/// The inverse of parsing.
impl fmt::Display for InsightSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition => f.write_str("partition"),
            Self::Field(source) => IdPart::from(source.clone()).fmt(f),
        }
    }
}
