//! Looking at local state: where an id is, what a partition holds, and the whole of it as a file.
//!
//! [`find()`], [`summarise`] and [`standing_of`] ask nothing but a [`Store`](crate::ports::Store), so they
//! serve a stopped instance's directory and a running store alike. Nothing in here changes a state
//! directory but [`import`].

mod error;
pub mod file;
mod filter;
mod find;
mod inspect;
mod spelling;
mod standing;
mod text;
mod transfer;

pub use error::StateError;
pub use filter::{FilterBits, SliceFilters, filters_of};
pub use find::{Owned, Summary, find, summarise};
pub use inspect::{Answer, Found, Inspection, PartitionReport, SliceReport, inspect};
pub use spelling::{parse_time, utc};
pub use standing::{Lengths, Standing, load, standing_of};
pub use transfer::{Transferred, export, import, verify};
