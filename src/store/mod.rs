//! The local block store on sled: a cache of what the state topic holds.
//!
//! It refuses to know Kafka, the window and the clock. It may lose state at any time (the caller
//! then restores from the state topic) and never invents any: every block carries a checksum, every
//! partition a count of what must be there, and whatever does not add up is set aside at opening.

mod adopt;
mod append;
mod binding;
mod blocks;
mod cache;
mod contents;
mod copied;
mod cut;
mod engine;
mod entry;
mod error;
mod files;
mod guard;
mod held;
mod joining;
mod keys;
mod lock;
pub mod memory;
mod open;
mod quarantine;
mod record;
mod segments;
mod tail;
mod verify;
mod walk;

pub use adopt::Adoption;
pub use binding::Binding;
pub use blocks::SledStore;
pub use contents::{Contents, Entry};
pub use copied::{Copied, open_copy};
pub use error::OpenError;
pub use held::Held;
pub use joining::Joining;
pub use lock::Lock;
pub use open::{Opened, open};
pub use quarantine::Quarantine;
