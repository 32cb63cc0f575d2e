//! The persistent formats: blocks of identities, and records of forgotten ones.

mod block;
mod forget_record;

pub use block::{Block, BlockError, BlockParts, BlockView};
pub use forget_record::ForgetRecord;
