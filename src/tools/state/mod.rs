//! Tools for local state: look up an id, summarise a window, export and import a whole state.
//!
//! [`find()`] and [`summarise`] depend only on a [`Store`](crate::ports::Store), so they work on the directory of a stopped instance and on a
//! running store. Only [`import`] changes a state directory.

mod command;
mod error;
pub mod file;
mod filter;
mod find;
mod inspect;
mod lookup;
mod spelling;
mod text;
mod transfer;
mod whole;

pub use command::command;
pub(crate) use command::look_up;
pub(crate) use error::StateError;
pub use filter::{PortableFilter, WrittenFilter, write_filter};
pub use find::{Found, Places, find};
pub use inspect::inspect;
pub use lookup::{FoundOwner, Lengths, LookupResult, Standing};
pub(crate) use spelling::utc;
pub(crate) use transfer::Transferred;
pub use transfer::{export, import, left_out, verify};
pub use whole::{StoredSummary, summarise};
