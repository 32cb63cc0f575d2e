//! Tools for local state: look up an id, summarise a partition, export and import a whole state.
//!
//! [`find()`], [`summarise`] and `standing::standing_of` depend only on a [`Store`](crate::ports::Store), so they work on the
//! directory of a stopped instance and on a running store. Only [`import`] changes a state directory.

mod command;
mod error;
pub mod file;
mod find;
mod inspect;
mod spelling;
mod standing;
mod text;
mod transfer;
mod whole;

pub use command::command;
pub(crate) use error::StateError;
pub use find::{Owned, find, summarise};
pub use inspect::{LookupResult, inspect};
pub use standing::{Lengths, Standing, load};
pub(crate) use transfer::Transferred;
pub use transfer::{export, import, left_out, verify};
