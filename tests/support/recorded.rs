//! Records of real systems in files: one record per line, as JSON, with keys, headers and values as text. `RECORD=1 make integration` writes them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Draft, Kafka, Record, now_ms};

/// A record and its topic.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    topic: String,
    partition: i32,
    timestamp: i64,
    key: Option<String>,
    headers: Vec<(String, Option<String>)>,
    value: Option<String>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/recorded").join(name)
}

/// The records of a file, with their topics. All timestamps are moved by the same time, so that the newest is now: a broker deletes old
/// records.
pub fn load(name: &str) -> Vec<(String, Draft)> {
    let text = std::fs::read_to_string(path(name)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<Line> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let moved = now_ms() - lines.iter().map(|line| line.timestamp).max().unwrap();
    let bytes = |text: Option<String>| text.map(String::into_bytes);
    let draft = |line: Line| {
        let headers = line.headers.into_iter().map(|(name, value)| (name, bytes(value))).collect();
        let (key, value) = (bytes(line.key), bytes(line.value));
        let timestamp_ms = Some(line.timestamp + moved);
        (line.topic, Draft { partition: line.partition, key, value, timestamp_ms, headers })
    };
    lines.into_iter().map(draft).collect()
}

/// With RECORD in the environment: writes these topics to a file, each under a name, behind a comment.
pub fn save(name: &str, comment: &str, topics: &[(&Kafka, &str, &str)]) {
    if std::env::var_os("RECORD").is_none() {
        return;
    }
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let line = |topic: &str, record: Record| Line {
        topic: topic.to_owned(),
        partition: record.partition,
        timestamp: record.timestamp_ms.unwrap(),
        key: record.key.map(text),
        headers: record.headers.into_iter().map(|(name, value)| (name, value.map(text))).collect(),
        value: record.value.map(text),
    };
    let mut file = format!("# {comment}\n");
    for (kafka, topic, name) in topics {
        for record in kafka.ended_records(topic) {
            file += &serde_json::to_string(&line(name, record)).unwrap();
            file.push('\n');
        }
    }
    std::fs::write(path(name), file).unwrap();
}
