//! The local store: owners in files, and in sled where they are. A cache of the state topic.
//!
//! It does not depend on Kafka, the window or the clock. It may lose state at any time: the caller then restores it
//! from the state topic. It never invents state: every run of owners has a checksum, and every window stores the counts
//! of its runs and identities. A database in which these do not match is quarantined when it is opened, unless only the last
//! owners of windows are missing, as after a power loss.

mod adopt;
mod append;
mod binding;
mod copied;
mod cut;
mod directory;
mod disk;
mod engine;
mod error;
mod files;
mod guard;
mod index;
mod joining;
mod keys;
mod leases;
mod lock;
mod lost;
mod open;
mod owners;
mod port;
mod record;
mod run;
mod sealed;
mod segments;
mod verify;

pub use adopt::Adoption;
pub use binding::{Binding, OtherRule};
pub use copied::{Copied, open_copy};
pub use directory::{DirectoryContents, DirectoryEntry, limit_quarantined};
pub use error::OpenError;
pub use joining::Joining;
pub use lock::{Lock, Takeover};
pub use open::{Opened, open};
pub use owners::SledStore;
pub use run::OWNER_BYTES;
