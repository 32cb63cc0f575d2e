//! Which modules and external crates a module may use.

/// The allowed dependencies: a module of `src/` and the modules that it may use. `*` allows everything, and `a::B` allows
/// only that item. A module that is not listed is a violation.
pub const MAY_USE: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("main", &["tools", "cli"]),
    ("app", SERVICE),
    ("cli", &["config"]),
    ("config", &["dedupe", "units"]),
    ("units", &[]),
    ("clock", &[]),
    ("locked", &[]),
    ("control", &["dedupe", "clock", "locked"]),
    ("ports", &["dedupe"]),
    ("dedupe", &[]),
    ("dedupe::coordinates", &[]),
    ("dedupe::varint", &[]),
    ("dedupe::identity", &["dedupe::coordinates", "dedupe::varint"]),
    // A format is a value and its bytes. The windows produce and read such values, and no format depends on a window.
    ("dedupe::format", &["dedupe::coordinates", "dedupe::identity", "dedupe::varint"]),
    ("dedupe::window", &["dedupe::coordinates", "dedupe::identity", "dedupe::format"]),
    ("store", &["dedupe", "ports", "clock::monotonic", "units", "locked"]),
    ("kafka", &["dedupe", "ports", "config", "clock", "units", "locked"]),
    // Workers have the clock of their world, so that a simulation has its own.
    (
        "pipeline",
        &[
            "dedupe",
            "ports",
            "clock::Clock",
            "metrics",
            "config",
            "control",
            "schemas::SharedSchemas",
            "units",
            "locked",
        ],
    ),
    ("schemas", &["clock", "config", "dedupe", "locked"]),
    ("metrics", &["locked"]),
    ("http", &["metrics", "control", "clock", "units"]),
    ("tools", &["app", "cli", "config"]), // the dispatch
    // A tool may not use another, except the demo, which runs all of dedupd in one process.
    ("tools::demo", &["*"]),
    ("tools::plan", &["dedupe", "units"]),
    (
        "tools::rekey",
        &[
            "clock",
            "config",
            "dedupe",
            "kafka",
            "metrics",
            "pipeline::COMPARE_INTERVAL",
            "pipeline::Fetching",
            "pipeline::MissingIds",
            "pipeline::STALL_TIMEOUT",
            "pipeline::SchemaCheck",
            "pipeline::SchemaWait",
            "pipeline::StallDetector",
            "pipeline::is_due",
            "ports",
            "schemas::SharedSchemas",
        ],
    ),
    ("tools::state", &["dedupe", "ports", "store", "pipeline"]),
    ("tools::trial", &["app", "cli", "clock", "kafka", "tools"]),
    ("tools::check", &["app", "cli", "config", "kafka", "tools::plan"]),
    ("tools::audit", &["app", "cli", "clock", "config", "dedupe", "kafka", "locked", "schemas"]),
    (
        "tools::explain",
        &[
            "app",
            "cli",
            "config",
            "dedupe",
            "http::Token",
            "kafka",
            "pipeline::Kinds",
            "ports",
            "store::Binding",
            "tools::health",
            "tools::print",
            "tools::state",
            "units",
        ],
    ),
    ("tools::forget", &["app", "cli", "config", "control", "tools::health"]),
    ("tools::generate", COMMAND),
    ("tools::health", &["app", "cli", "config"]),
    ("tools::*::command", COMMAND),
    (
        "tools::rekey::command",
        &[
            "app",
            "cli",
            "clock",
            "config",
            "dedupe",
            "http",
            "kafka",
            "metrics",
            "pipeline::Fatal",
            "pipeline::REPLACED_MAX",
            "pipeline::Rivals",
            "pipeline::second_process",
            "ports",
            "schemas",
        ],
    ),
];
/// The running service does not depend on the other commands.
const SERVICE: &[&str] = &[
    "cli", "clock", "config", "control", "dedupe", "http", "kafka", "metrics", "pipeline", "ports",
    "schemas", "store",
];
/// The folders of `src/pipeline`. Each uses only those before it, and the files beside them.
pub const LAYERS: &[&str] =
    &["partition", "journal", "limits", "commit", "torn", "recovery", "worker", "standby"];
/// What connects a command with the command line.
const COMMAND: &[&str] = &[
    "app",
    "cli",
    "clock",
    "config",
    "dedupe",
    "kafka",
    "schemas",
    "store",
    "tools::print",
    "tools::properties",
];

/// External crates and the only folders or files that may use them, so that each crate can be replaced there.
pub const USED_IN: &[(&str, &[&str])] = &[
    ("sled", &["store"]),
    ("rdkafka", &["kafka", "tools"]),
    ("rdkafka_sys", &["kafka", "tools"]),
    ("zstd_safe", &["kafka"]),
    ("clap", &["cli", "main"]),
    ("prometheus", &["metrics"]),
    ("datasketches", &["pipeline/report", "tools/state"]),
    ("tokio", &["app", "http", "tools/demo", "tools/generate", "tools/rekey", "kafka/admin"]),
    ("axum", &["http"]),
    ("toml", &["config"]),
    ("protox", &["schemas"]),
    ("ureq", &["schemas"]),
    ("dedupd_audit", &["cli", "tools"]),
    ("testkit", &["tools/demo", "tools/generate", "tools/trial"]),
];
