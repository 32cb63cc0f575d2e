//! The one line that shows what is going on.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::metrics::{Metrics, Outcome};

/// Without a terminal the line is printed every so often instead of being drawn anew.
const PRINT: Duration = Duration::from_secs(5);

/// A line that is drawn over itself on a terminal.
pub(super) struct Line {
    bar: ProgressBar,
    printed: Option<Duration>,
}

impl Line {
    /// `seconds` is how long the traffic flows; `None` for ever.
    pub(super) fn new(seconds: Option<u64>) -> Self {
        let (bar, form) = match seconds {
            Some(seconds) => (ProgressBar::new(seconds), "{bar:24} {pos:>3}/{len} s  {msg}"),
            None => (ProgressBar::new_spinner(), "{spinner} {pos:>5} s  {msg}"),
        };
        let bar = match ProgressStyle::with_template(form) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        bar.set_message("waiting for the consumer group to form");
        Self { bar, printed: (!std::io::stderr().is_terminal()).then_some(Duration::ZERO) }
    }

    pub(super) fn show(&mut self, elapsed: Duration, metrics: &Metrics) {
        let count = |outcome| metrics.records(outcome).get();
        let duplicates = count(Outcome::Duplicate);
        let clean = count(Outcome::Forwarded) + count(Outcome::Retry) + count(Outcome::MissingId);
        let message = format!("raw {}  clean {clean}  duplicates dropped {duplicates}", clean + duplicates);
        if let Some(printed) = self.printed
            && elapsed.saturating_sub(printed) >= PRINT
        {
            self.printed = Some(elapsed);
            println!("{:>4} s  {message}", elapsed.as_secs());
        }
        self.bar.set_position(elapsed.as_secs());
        self.bar.set_message(message);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
