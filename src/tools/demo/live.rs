//! The progress line of the demo.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::metrics::{Metrics, Outcome};

/// Without a terminal the line is printed at this interval instead of being redrawn.
const PRINT_INTERVAL: Duration = Duration::from_secs(5);

/// A line that is redrawn in place on a terminal.
pub(super) struct LiveLine {
    bar: ProgressBar,
    printed: Option<Duration>,
}

impl LiveLine {
    /// `seconds`: duration of the traffic; `None` is until stopped.
    pub(super) fn new(seconds: Option<u64>) -> Self {
        let (bar, template) = match seconds {
            Some(seconds) => (ProgressBar::new(seconds), "{bar:24} {pos:>3}/{len} s  {msg}"),
            None => (ProgressBar::new_spinner(), "{spinner} {pos:>5} s  {msg}"),
        };
        let bar = match ProgressStyle::with_template(template) {
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
            && elapsed.saturating_sub(printed) >= PRINT_INTERVAL
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
