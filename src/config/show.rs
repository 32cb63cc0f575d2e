//! Prints the effective configuration as TOML without secrets.

use super::units::{duration_text, size_text};
use super::validated::{Config, HashChoice, Kind};

impl Config {
    /// The effective configuration as TOML. A value that could be a secret is printed as `"***"`. Without such values
    /// the text parses to the same configuration.
    pub fn show(&self) -> String {
        let mut page = Page::default();
        self.show_kafka(&mut page);
        self.show_topics_and_group(&mut page);
        self.show_identity_and_window(&mut page);
        self.show_batch_state_http(&mut page);
        page.0
    }

    fn show_kafka(&self, page: &mut Page) {
        page.section("kafka");
        page.text("bootstrap_servers", &self.kafka.bootstrap_servers);
        page.section("kafka.properties");
        for (name, value) in self.kafka.properties.shown() {
            page.text(&quoted(name), value);
        }
    }

    fn show_topics_and_group(&self, page: &mut Page) {
        let (topics, group) = (&self.topics, &self.group);
        page.section("topics");
        page.text("raw", topics.raw.as_str());
        page.text("clean", topics.clean.as_str());
        page.text("state", topics.state.as_str());
        for (key, topic) in [("dead_letter", &topics.dead_letter), ("duplicates", &topics.duplicates)] {
            if let Some(topic) = topic {
                page.text(key, topic.as_str());
            }
        }
        page.plain("create", topics.create);

        page.section("group");
        page.text("id", &group.id);
        page.text("instance", &group.instance);
        page.plain("workers", group.workers);
        page.plain("static_membership", group.static_membership);
        page.text("session_timeout", &duration_text(group.session_timeout));
        page.text("start", group.start.as_str());
        page.text("on_rewind", group.on_rewind.as_str());
        page.text("on_gap", group.on_gap.as_str());
    }

    fn show_identity_and_window(&self, page: &mut Page) {
        let (identity, window) = (&self.identity, &self.window);
        page.section("identity");
        let from: Vec<_> = identity.from.iter().map(|source| quoted(&source.to_string())).collect();
        page.plain("from", format_args!("[{}]", from.join(", ")));
        page.text("on_missing", identity.on_missing.as_str());
        if let Some(name) = &identity.force_header {
            page.text("force_header", name);
        }
        page.text("hash", identity.hash.as_str());
        if let HashChoice::SipHash { key_file } = &identity.hash {
            page.text("key_file", &key_file.to_string_lossy());
        }
        if let Some(fingerprint) = identity.accept_change {
            page.text("accept_change", &fingerprint.to_string());
        }

        page.section("dedupe");
        page.text("mode", self.mode.as_str());

        page.section("window");
        page.text("exact", &duration_text(window.exact));
        page.text("bloom", &duration_text(window.bloom));
        page.plain("slices", window.slices);
        page.plain("false_positive_rate", format_args!("{:?}", window.false_positive_rate));
        page.text("on_probable", window.on_probable.as_str());
        page.plain("max_ids", window.max_ids);
        page.text("overflow", window.overflow.as_str());
        page.size("max_memory", window.max_memory);
        page.text("time", window.time.as_str());
        self.kinds.iter().for_each(|kind| show_kind(kind, page));
    }

    fn show_batch_state_http(&self, page: &mut Page) {
        let (batch, state) = (&self.batch, &self.state);
        page.section("batch");
        page.plain("max_records", batch.max_records);
        page.text("max_bytes", &size_text(batch.max_bytes));
        page.text("interval", &duration_text(batch.interval));
        page.text("transaction_timeout", &duration_text(batch.transaction_timeout));

        page.section("state");
        page.text("dir", &state.dir.to_string_lossy());
        page.text("cache", &size_text(state.cache));
        page.size("max_disk", state.max_disk);
        page.text("on_poison", state.on_poison.as_str());
        page.text("poison_retry", &duration_text(state.poison_retry));

        page.section("http");
        page.text("listen", &self.http.listen.to_string());
        if let Some(path) = &self.http.token_file {
            page.text("token_file", &path.to_string_lossy());
        }
    }
}

fn show_kind(kind: &Kind, page: &mut Page) {
    page.line(format_args!("\n[[kinds]]"));
    page.text("name", &kind.name);
    page.text("from", &kind.from.to_string());
    let values: Vec<_> = kind.values.iter().map(|value| quoted(value)).collect();
    page.plain("values", format_args!("[{}]", values.join(", ")));
    page.plain("dedupe", kind.window.is_some());
    if let Some(window) = &kind.window {
        page.text("exact", &duration_text(window.exact));
        page.text("bloom", &duration_text(window.bloom));
        page.plain("false_positive_rate", format_args!("{:?}", window.false_positive_rate));
        page.text("on_probable", window.on_probable.as_str());
    }
}

/// A TOML document under construction.
#[derive(Default)]
struct Page(String);

impl Page {
    fn section(&mut self, name: &str) {
        let blank = if self.0.is_empty() { "" } else { "\n" };
        self.line(format_args!("{blank}[{name}]"));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.line(format_args!("{key} = {}", quoted(value)));
    }

    /// A size, if it is set.
    fn size(&mut self, key: &str, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.text(key, &size_text(bytes));
        }
    }

    fn plain(&mut self, key: &str, value: impl std::fmt::Display) {
        self.line(format_args!("{key} = {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.push_str(&line.to_string());
        self.0.push('\n');
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
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
