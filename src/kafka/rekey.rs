//! The Kafka side of `rekey`: reads many topics as a member of a group, and writes one topic with an idempotent producer.

mod check;
mod source;
mod target;

pub(crate) use check::check_rekey;
pub use source::SourceReader;
pub(crate) use target::{Acknowledgements, TargetWriter};
