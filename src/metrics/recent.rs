//! The last warnings, for the status page.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::locked::Locked;

/// Warnings kept.
const KEPT: usize = 20;

/// A warning or error from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Wall clock, epoch milliseconds.
    pub time_ms: i64,
    /// Message and fields of the log line, without time and level.
    pub text: String,
}

/// The last warnings of this process. Clones share the same list.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Mutex<VecDeque<Warning>>>);

impl Recent {
    /// Adds a warning. It replaces the last one when the text is the same.
    pub fn add(&self, warning: Warning) {
        let mut kept = self.0.locked();
        if kept.back().is_some_and(|last| last.text == warning.text) {
            kept.pop_back();
        }
        kept.push_back(warning);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// The warnings, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Warning> {
        let kept = self.0.locked();
        kept.iter().rev().cloned().collect()
    }
}
