//! A TOML document under construction.

use std::fmt::Display;

/// A TOML document under construction.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    /// The text of the document.
    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// The head of a table.
    pub(super) fn section(&mut self, name: &str) {
        self.head(format_args!("[{name}]"));
    }

    /// The head of a table of a list of tables.
    pub(super) fn table(&mut self, name: &str) {
        self.head(format_args!("[[{name}]]"));
    }

    /// A string.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.plain(key, quoted(value));
    }

    /// A list of strings.
    pub(super) fn list<T: ToString>(&mut self, key: &str, values: &[T]) {
        let values: Vec<_> = values.iter().map(|value| quoted(&value.to_string())).collect();
        self.plain(key, format_args!("[{}]", values.join(", ")));
    }

    /// A value that is TOML as it is.
    pub(super) fn plain(&mut self, key: &str, value: impl Display) {
        self.line(format_args!("{key} = {value}"));
    }

    fn head(&mut self, head: impl Display) {
        let blank = if self.0.is_empty() { "" } else { "\n" };
        self.line(format_args!("{blank}{head}"));
    }

    fn line(&mut self, line: impl Display) {
        self.0.push_str(&line.to_string());
        self.0.push('\n');
    }
}

/// A TOML basic string.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.extend(format!("\\u{:04X}", u32::from(c)).chars()),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
