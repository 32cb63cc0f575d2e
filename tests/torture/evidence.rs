//! The data that is stored of a failed round.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::faults::Faults;
use super::recipe::Recipe;
use super::rekeyed;
use super::round::PARTITIONS;
use super::sources::is_foreign;
use super::support::{Isolation, Kafka, Pipe};

/// The log message of an instance that finds a torn transaction.
const TORN: &str = "the broker left the last transaction without some of its markers";
/// The end of the log messages of an instance that writes to a side topic outside of transactions.
const REWRITES: [&str; 2] = ["rewriting its committed records", "rewriting those that are"];

/// Number of torn transactions that instances found.
pub fn torn(pipe: &Pipe<'_>) -> usize {
    logs(pipe).map(|(_, text)| text.matches(TORN).count()).sum()
}

/// How often instances began to write to a side topic outside of transactions.
pub fn rewrites(pipe: &Pipe<'_>) -> usize {
    logs(pipe)
        .map(|(_, text)| REWRITES.map(|rewrites| text.matches(rewrites).count()).iter().sum::<usize>())
        .sum()
}

/// Records of other programs that are in the logs and that no `read_committed` reader may see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hidden {
    /// Those of upstreams in raw, or in the source topics.
    pub raw: usize,
    /// Those of foreign programs in the clean topic.
    pub clean: usize,
}

pub fn hidden(pipe: &Pipe<'_>, recipe: &Recipe) -> Hidden {
    let mut hidden = Hidden::default();
    for partition in 0..i32::try_from(PARTITIONS).unwrap() {
        let all = |topic: &str| pipe.kafka.records_in(topic, partition, Isolation::Uncommitted);
        for topic in rekeyed::loaded_topics(pipe, recipe) {
            hidden.raw += all(&topic).len() - pipe.kafka.records_of(&topic, partition).len();
        }
        hidden.clean += all(&pipe.clean).iter().filter(|record| is_foreign(record)).count();
    }
    hidden
}

fn logs(pipe: &Pipe<'_>) -> impl Iterator<Item = (String, String)> {
    let files = fs::read_dir(pipe.dir.path()).unwrap().flatten().map(|file| file.path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned())
    })
}

/// The state of the brokers and the instances while they are running.
pub fn of_running(pipe: &Pipe<'_>, recipe: &Recipe, faults: &Faults<'_>) -> String {
    let mut text = String::new();
    let mut topics = rekeyed::loaded_topics(pipe, recipe);
    topics.extend([pipe.raw.clone(), pipe.clean.clone(), format!("{}.dedupd", pipe.clean)]);
    topics.dedup();
    for topic in &topics {
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            let (start, end) = pipe.kafka.watermarks(topic, partition);
            let stable = pipe.kafka.last_stable_offset(topic, partition);
            writeln!(text, "{topic}/{partition}: {start} to {end}, stable to {stable}").unwrap();
        }
    }
    let client: BaseConsumer = pipe.kafka.client_config().create().expect("a consumer");
    for group in [pipe.group(), rekeyed::group(pipe)] {
        match client.fetch_group_list(Some(&group), Duration::from_secs(10)) {
            Ok(list) => {
                for group in list.groups() {
                    writeln!(text, "group {}: {}", group.name(), group.state()).unwrap();
                    for member in group.members() {
                        let assigned = member.assignment().map(assigned).unwrap_or_default();
                        writeln!(text, "  member {} has {assigned:?}", member.id()).unwrap();
                    }
                }
            }
            Err(error) => writeln!(text, "group {group}: {error}").unwrap(),
        }
    }
    for process in faults.running() {
        for page in ["/readyz", "/status.json"] {
            let answer = process.get(page).unwrap_or_else(|| "no answer".to_owned());
            writeln!(text, "{} {page}: {answer}", process.log.display()).unwrap();
        }
    }
    text
}

/// The partitions in an assignment of the classic protocol, those of the first topic.
fn assigned(bytes: &[u8]) -> Vec<i32> {
    let int = |at: usize, length: usize| {
        let bytes = bytes.get(at..at + length).unwrap_or_default();
        bytes.iter().fold(0_i32, |all, byte| (all << 8) | i32::from(*byte))
    };
    if int(2, 4) < 1 {
        return Vec::new();
    }
    let after_name = 2 + 4 + 2 + usize::try_from(int(6, 2)).unwrap_or_default();
    (0..usize::try_from(int(after_name, 4)).unwrap_or_default())
        .map(|number| int(after_name + 4 + 4 * number, 4))
        .collect()
}

/// Stores the logs of all processes and the other evidence as one text.
pub fn keep(dir: &Path, pipe: &Pipe<'_>, nodes: &[Kafka], text: &str) {
    fs::create_dir_all(dir).unwrap();
    for (name, log) in logs(pipe) {
        fs::write(dir.join(name), log).unwrap();
    }
    for (number, node) in (1..).zip(nodes) {
        fs::write(dir.join(format!("broker-{number}.log")), node.log()).unwrap();
    }
    fs::write(dir.join("evidence.txt"), text).unwrap();
}
