//! The JVM of the broker and of its tools: options, class path, tools of Kafka.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::child;

/// Starts half a second earlier, and leaves more CPU time to the test.
pub const QUICK_JIT: &str = "-XX:TieredStopAtLevel=1";

/// Runs one of Kafka's own tools by its class, for example `org.apache.kafka.tools.TransactionsCommand`, and
/// returns its output. Panics if it fails. Each call starts a JVM, which takes at least half a second.
pub fn tool(class: &str, arguments: &[&str]) -> String {
    let mut java = child::tied("java");
    java.args(shared_classes())
        .args([QUICK_JIT, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &class_path(), class])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = child::spawn(java).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{class} {arguments:?} failed:\n{text}{errors}");
    text
}

/// Runs the tool that changes settings of clients and users. It moved in 4.4.
pub fn config_tool(arguments: &[&str]) -> String {
    let moved = kafka_version() >= vec![4, 4];
    tool(if moved { "org.apache.kafka.tools.ConfigCommand" } else { "kafka.admin.ConfigCommand" }, arguments)
}

/// The version of the jars, as its numbers.
pub fn kafka_version() -> Vec<u32> {
    let numbers = |jar: fs::DirEntry| -> Option<Vec<u32>> {
        let name = jar.file_name().into_string().ok()?;
        // The version of kafka-tools-api is no sequence of numbers.
        let version = name.strip_prefix("kafka-tools-")?.strip_suffix(".jar")?;
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    fs::read_dir(libs()).unwrap().flatten().find_map(numbers).expect("the jar of Kafka's tools")
}

/// JVM options that load the broker's classes from an archive (class data sharing). This saves a third to a half of
/// the CPU time of each start. A JVM ignores an archive that is missing or belongs to other jars.
pub fn shared_classes() -> [String; 2] {
    [format!("-XX:SharedArchiveFile={}", class_archive().display()), "-Xlog:cds*=off".to_owned()]
}

pub fn class_archive() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("classes-{}.jsa", pinned_version()))
}

/// The class path of the jars.
pub fn class_path() -> String {
    libs().join("*").to_str().expect("a path in UTF-8").to_owned()
}

/// The directory of the jars. Panics with the setup command if it is missing.
fn libs() -> PathBuf {
    let home = env::var_os("DEDUPD_KAFKA_HOME").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".kafka").join(pinned_version()),
        PathBuf::from,
    );
    let libs = home.join("libs");
    assert!(
        libs.is_dir(),
        "no Kafka jars in {}: run scripts/setup, or set DEDUPD_KAFKA_HOME to a directory with libs/",
        libs.display()
    );
    libs
}

/// The version in `scripts/kafka/pom.xml`, the only place that contains it.
fn pinned_version() -> &'static str {
    let pom = include_str!("../../scripts/kafka/pom.xml");
    let after = pom.split_once("<kafka.version>").expect("a version in pom.xml").1;
    after.split_once('<').expect("a closed element in pom.xml").0
}
