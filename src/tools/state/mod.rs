//! Tools for local state: look up an id, summarise a partition, export and import a whole state.
//!
//! [`find()`], [`summarise`] and [`standing_of`] depend only on a [`Store`](crate::ports::Store), so they work on the
//! directory of a stopped instance and on a running store. Only [`import`] changes a state directory.

mod command;
mod error;
pub mod file;
mod filter;
mod find;
mod inspect;
mod spelling;
mod standing;
mod text;
mod transfer;

pub use command::command;
pub use error::StateError;
pub use filter::{FilterBits, SliceFilters, filters_of};
pub use find::{Owned, Summary, find, summarise};
pub use inspect::{Answer, Found, Inspection, PartitionReport, SliceReport, inspect};
pub use spelling::{parse_time, utc};
pub use standing::{Lengths, Standing, load, standing_of};
pub use transfer::{Transferred, export, import, verify};
