//! Load with real duplicates and an embedded broker: for the demo, the tests and the command `generate`.
//!
//! The crate uses no code of the service. It receives what it needs as plain values: addresses, client properties, names of topics.

pub mod generate;
pub mod mock;
pub mod pipe;
