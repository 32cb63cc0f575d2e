//! Ids in records of a schema registry: Apicurio Registry with its Confluent API, and a real Apache Kafka.

mod tls;

use std::path::PathBuf;
use std::time::Duration;

use dedupd::config::{Frame, SchemasConfig};
use dedupd::dedupe::SchemaId;
use dedupd::schemas::Registry as Client;
use serde_json::{Value, json};

use crate::support::{Draft, Pipe, Running, Sidecar, child, ports::free_port, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(2);
const API: &str = "/apis/ccompat/v7";
const CUSTOMER: &str =
    r#"{"type":"record","name":"Customer","namespace":"shop","fields":[{"name":"name","type":"string"}]}"#;
const ORDER_1: &str =
    r#"{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"}]}"#;
const ORDER_2: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"by","type":["null","shop.Customer"],"default":null},{"name":"id","type":"string"}]}"#;
const LINE_PROTO: &str = "syntax = \"proto3\"; package shop; message Line { int64 number = 4; }";
const ORDER_PROTO: &str = "syntax = \"proto3\"; package shop; import \"line.proto\"; message Other { int32 id = 9; } message Order { string note = 1; Line line = 2; }";

/// Apicurio Registry, with its content in memory.
struct Registry {
    running: Running,
    port: u16,
}

impl Registry {
    fn start(port: u16, dir: &std::path::Path) -> Self {
        Self::start_with(port, dir, &[])
    }

    /// With further properties of Quarkus.
    fn start_with(port: u16, dir: &std::path::Path, properties: &[(&str, &str)]) -> Self {
        let jar = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join(".integration/registry/apicurio-registry-app-2.6.13.Final-runner.jar");
        assert!(jar.exists(), "{} is missing; run scripts/setup integration", jar.display());
        let mut command = child::tied("java");
        command.arg(format!("-Dquarkus.http.port={port}")).arg("-Dquarkus.http.host=127.0.0.1");
        command.args(properties.iter().map(|(name, value)| format!("-D{name}={value}")));
        command.args(["-Xmx256m", "-jar"]).arg(jar).current_dir(dir);
        let running = Running::start(command, port, dir.join("registry.log"));
        wait_until("the registry", LIMIT, || {
            running.get(&format!("{API}/subjects"))?.starts_with("HTTP/1.1 200").then_some(())
        });
        Self { running, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}{API}", self.port)
    }

    /// Registers a schema and returns its id.
    fn register(&self, subject: &str, format: &str, schema: &str, references: &Value) -> u32 {
        let body = json!({ "schema": schema, "schemaType": format, "references": references }).to_string();
        let path = format!("{API}/subjects/{subject}/versions");
        let headers = ["Content-Type: application/json"];
        let page = self.running.request("POST", &path, &headers, &body, Duration::from_secs(20)).unwrap();
        let (_, id) = page.split_once("\"id\":").unwrap_or_else(|| panic!("no id: {page}"));
        id.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    }

    /// Registers all schemas but the last version of the orders, always with the same ids.
    fn fill(&self) -> [u32; 4] {
        let none = json!([]);
        let customer = self.register("customer", "AVRO", CUSTOMER, &none);
        let order = self.register("order", "AVRO", ORDER_1, &none);
        let line = self.register("line", "PROTOBUF", LINE_PROTO, &none);
        let references = json!([{ "name": "line.proto", "subject": "line", "version": 1 }]);
        let proto = self.register("order-proto", "PROTOBUF", ORDER_PROTO, &references);
        assert_eq!(customer + 1, order);
        assert!(line < proto);
        let json = self.register(
            "order-json",
            "JSON",
            r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}"#,
            &none,
        );
        [order, proto, json, json + 1]
    }

    fn register_second_order(&self) -> u32 {
        let references = json!([{ "name": "shop.Customer", "subject": "customer", "version": 1 }]);
        self.register("order", "AVRO", ORDER_2, &references)
    }
}

fn draft(partition: i32, schema: u32, document: &[u8]) -> Draft {
    let value = [&[0], &schema.to_be_bytes()[..], document].concat();
    Draft { partition, value: Some(value), ..Draft::default() }
}

fn string(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len() * 2).unwrap()], text.as_bytes()].concat()
}

fn total(pipe: &Pipe<'_>) -> usize {
    [0, 1].map(|partition| pipe.kafka.records_of(&pipe.clean, partition).len()).iter().sum()
}

fn sidecar(pipe: &Pipe<'_>, registry: &Registry, source: &str) -> Sidecar {
    pipe.sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", &format!("[\"{source}\"]"))
        .with("DEDUPD_SCHEMAS__REGISTRY", &registry.url())
}

/// Its own API, by both ids.
#[test]
fn the_own_api_of_apicurio_returns_the_same_schemas() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(free_port(), dir.path());
    let [order, proto, json, unknown] = registry.fill();
    registry.register_second_order();
    let open = |frame, url| {
        let config = SchemasConfig { frame, ..SchemasConfig::open(Some(url)) };
        Client::open(&config).unwrap().unwrap()
    };
    let own = open(Frame::Apicurio, registry.url().replace("ccompat/v7", "registry/v2"));
    let confluent = open(Frame::Confluent, registry.url());
    for id in [order, proto, json, unknown] {
        let expected = confluent.schema(SchemaId::Number(id)).unwrap();
        for id in [SchemaId::Global(id.into()), SchemaId::Content(id.into())] {
            assert_eq!(own.schema(id), Ok(expected.clone()), "{id}");
        }
    }
    let missing = own.schema(SchemaId::Global(99)).unwrap_err();
    assert!(missing.is_unregistered, "{}", missing.what);
    let wrong = open(Frame::Apicurio, registry.url().replace("ccompat/v7", "wrong"));
    let wrong = wrong.schema(SchemaId::Global(1)).unwrap_err();
    assert!(!wrong.is_unregistered, "{}", wrong.what);
}

#[test]
fn records_of_a_registry_are_deduplicated_through_its_outages() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let registry = Registry::start(port, dir.path());
    let [order, proto, json, next] = registry.fill();

    // Protobuf: the second message of its file, with an imported one. JSON behind the prefix of the registry.
    let pipe = Pipe::new(shared_kafka(), "registry-proto", 2);
    let running = sidecar(&pipe, &registry, "protobuf:/line/number").start();
    let document = |number: u8| [2, 2, 0x0a, 1, b'x', 0x12, 2, 0x20, number];
    pipe.kafka.send(&pipe.raw, &[7, 7, 8].map(|number| draft(0, proto, &document(number))));
    wait_until("two of three Protobuf records", LIMIT, || (total(&pipe) == 2).then_some(()));
    pipe.wait_caught_up(2, LIMIT);
    running.kill9();
    sidecar(&pipe, &registry, "protobuf:/line/number").audit().unwrap();
    let pipe = Pipe::new(shared_kafka(), "registry-json", 2);
    let running = sidecar(&pipe, &registry, "json:/id").start();
    let drafts = [r#"{"id":1}"#, r#"{"id":1}"#, r#"{"id":2}"#].map(|it| draft(0, json, it.as_bytes()));
    pipe.kafka.send(&pipe.raw, &drafts);
    wait_until("two of three JSON records", LIMIT, || (total(&pipe) == 2).then_some(()));
    pipe.wait_caught_up(2, LIMIT);
    running.kill9();
    sidecar(&pipe, &registry, "json:/id").audit().unwrap();

    // Avro: a schema that is not registered yet.
    let pipe = Pipe::new(shared_kafka(), "registry-avro", 2);
    let sidecar = sidecar(&pipe, &registry, "avro:/id");
    let running = sidecar.start();
    let second = |partition, id: &str| draft(partition, next, &[vec![2], string("Ada"), string(id)].concat());
    let first = |partition, id: &str| draft(partition, order, &string(id));
    pipe.kafka
        .send(&pipe.raw, &[first(0, "a"), second(0, "a"), second(0, "b"), first(1, "c"), first(1, "a")]);
    wait_until("the records before the unknown schema", LIMIT, || (total(&pipe) == 2).then_some(()));
    let reason = format!("partition 0 is waiting (needs schema {next}: GET");
    wait_until("a reason", LIMIT, || running.get("/readyz")?.contains(&reason).then_some(()));

    // The registry is down: partition 1, whose schema is known, continues.
    registry.running.kill9();
    pipe.kafka.send(&pipe.raw, &[first(1, "d"), first(1, "c")]);
    wait_until("a record without a registry", LIMIT, || (total(&pipe) == 3).then_some(()));
    wait_until("the reason", LIMIT, || running.get("/readyz")?.contains("onnection refused").then_some(()));
    let registry = Registry::start(port, dir.path());
    assert_eq!(registry.fill(), [order, proto, json, next], "the ids are the same after the restart");
    assert_eq!(registry.register_second_order(), next);
    running.wait_ready(LIMIT);
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(total(&pipe), 4, "a, b, c, d");
    sidecar.audit().unwrap();

    // The other commands read the schemas, too.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"))
        .args(["plan", "--raw", &pipe.raw, "--bootstrap-servers", pipe.kafka.bootstrap(), "--id", "avro:/id"])
        .args(["--schema-registry", &registry.url()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("newest 7"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
