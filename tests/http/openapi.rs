//! docs/openapi.json describes the server: its routes, methods, status codes and content types, and every field of its documents.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::Duration;

use dedupd::control::{Answer, OwnerPlace, WindowPart};
use dedupd::http::{AdminApi, ClientLimits, Token};
use dedupd::metrics::{
    ClientLabel, ClientStatus, DuplicateStatus, DuplicatesStatus, KindStatus, Role, SourceStatus,
    StandbyStatus, TopValues, ValueCount, WorkerStatus,
};
use serde_json::{Value, json};

use super::admin::{SECRET, answering, logging};
use super::duplicates::duplicate;
use super::{Server, running};

fn specification() -> Value {
    serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap()
}

/// Path, method, status code and content type of each declared response; without the last one if it has no content.
fn declared(specification: &Value) -> BTreeSet<[String; 4]> {
    let mut all = BTreeSet::new();
    for (path, methods) in specification["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for (code, response) in operation["responses"].as_object().unwrap() {
                let kinds = response["content"].as_object();
                let kinds = kinds.map_or_else(|| vec![String::new()], |it| it.keys().cloned().collect());
                all.extend(kinds.into_iter().map(|kind| [path.clone(), method.clone(), code.clone(), kind]));
            }
        }
    }
    all
}

/// How a field was found in documents, or is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FieldForm {
    Value,
    Null,
    Absent,
}

/// A schema, field and form.
type Fields = BTreeSet<(String, String, FieldForm)>;

/// Compares documents with schemas.
struct Comparison<'a> {
    specification: &'a Value,
    found: Fields,
}

impl Comparison<'_> {
    /// Where a value differs from a schema.
    fn differences(&mut self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            let named = self.specification["components"]["schemas"][name].clone();
            assert!(named.is_object(), "{name} is not declared");
            return self.differences(&named, value, name);
        }
        if let Some(alternatives) = schema["anyOf"].as_array() {
            for alternative in alternatives {
                let before = self.found.clone();
                if self.differences(alternative, value, at).is_empty() {
                    return Vec::new();
                }
                self.found = before;
            }
            return vec![format!("{at}: {value} is none of the alternatives")];
        }
        let is_allowed = match &schema["type"] {
            Value::Array(several) => several.iter().any(|one| is_of(one, value)),
            one => is_of(one, value),
        };
        let is_listed = schema["enum"].as_array().is_none_or(|listed| listed.contains(value));
        if !is_allowed || !is_listed {
            return vec![format!("{at}: {value} is not {}", schema["type"])];
        }
        match value {
            Value::Array(items) => {
                items.iter().flat_map(|item| self.differences(&schema["items"], item, at)).collect()
            }
            Value::Object(_) if schema["properties"].is_null() => {
                let values = value.as_object().unwrap().values();
                values.flat_map(|it| self.differences(&schema["additionalProperties"], it, at)).collect()
            }
            Value::Object(fields) => {
                let properties = schema["properties"].as_object().unwrap();
                let unknown = fields.keys().filter(|name| !properties.contains_key(*name));
                let mut wrong: Vec<_> = unknown.map(|name| format!("{at}.{name} is not declared")).collect();
                for (name, property) in properties {
                    let form = match fields.get(name) {
                        None => FieldForm::Absent,
                        Some(Value::Null) => FieldForm::Null,
                        Some(_) => FieldForm::Value,
                    };
                    self.found.insert((at.to_owned(), name.clone(), form));
                    if form == FieldForm::Absent
                        && schema["required"].as_array().unwrap().contains(&json!(name))
                    {
                        wrong.push(format!("{at}.{name} is not there"));
                    }
                    if let Some(value) = fields.get(name) {
                        wrong.extend(self.differences(property, value, &format!("{at}.{name}")));
                    }
                }
                let has_all = |one: &&Value| {
                    let required = one["required"].as_array().unwrap();
                    required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                };
                if schema["oneOf"].as_array().is_some_and(|all| all.iter().filter(has_all).count() != 1) {
                    wrong.push(format!("{at}: not exactly one of the alternatives"));
                }
                wrong
            }
            _ => Vec::new(),
        }
    }

    /// The forms that the schemas declare.
    fn declared_fields(&self) -> Fields {
        let mut all = Fields::new();
        for (schema, declared) in self.specification["components"]["schemas"].as_object().unwrap() {
            let required = declared["required"].as_array().unwrap();
            for (name, property) in declared["properties"].as_object().unwrap() {
                let field = |form| (schema.clone(), name.clone(), form);
                all.insert(field(FieldForm::Value));
                let null = json!("null");
                let is_null_of =
                    |it: &Value| it["type"].as_array().is_some_and(|types| types.contains(&null));
                let alternatives = property["anyOf"].as_array();
                let or_null = alternatives.is_some_and(|all| all.iter().any(|it| it["type"] == null));
                if is_null_of(property) || or_null {
                    all.insert(field(FieldForm::Null));
                }
                if !required.contains(&json!(name)) {
                    all.insert(field(FieldForm::Absent));
                }
            }
        }
        all
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}

/// Sends requests, and notes what the server answers.
struct Client<'a> {
    comparison: Comparison<'a>,
    answered: BTreeSet<[String; 4]>,
}

impl Client<'_> {
    /// Sends `METHOD PATH` with headers and body. Returns the status code.
    fn send(&mut self, server: &Server, line: &str, headers: &str, body: &[u8]) -> u16 {
        let mut stream = server.connect();
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\n\r\n");
        // At once: what the server has not read when it closes resets the connection.
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap();
        let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        let (method, target) = line.split_once(' ').unwrap();
        let (path, method) = (target.split('?').next().unwrap(), method.to_lowercase());
        if code != "405" {
            self.answered.insert([path, &method, code, kind].map(str::to_owned));
        }
        if kind == "application/json" {
            let document: Value = serde_json::from_str(content).unwrap();
            let responses = &self.comparison.specification["paths"][path][&method]["responses"];
            let schema = responses[code]["content"][kind]["schema"].clone();
            let wrong = self.comparison.differences(&schema, &document, path);
            assert!(wrong.is_empty(), "{line}, {code}: {wrong:#?}");
        }
        code.parse().unwrap()
    }

    /// A request with the token and a JSON body, which the specification allows or not.
    fn forget(&mut self, server: &Server, body: &Value) -> u16 {
        let headers = format!("Authorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n");
        let code = self.send(server, "POST /forget", &headers, body.to_string().as_bytes());
        let content = &self.comparison.specification["paths"]["/forget"]["post"]["requestBody"]["content"];
        let schema = content["application/json"]["schema"].clone();
        let before = self.comparison.found.clone();
        let wrong = self.comparison.differences(&schema, body, "body");
        if !wrong.is_empty() {
            self.comparison.found = before;
        }
        assert_eq!(wrong.is_empty(), code != 400, "{body}: {wrong:?}");
        code
    }
}

/// A status in which every field has a value.
fn fill(server: &Server) {
    let one = duplicate();
    let count = |value: Option<&str>| ValueCount { value: value.map(str::to_owned), least: 2, most: 3 };
    let values = TopValues { values: vec![count(Some("a")), count(None)], unlisted_most: 3 };
    let source = SourceStatus { by: "key".to_owned(), duplicates: values.clone(), conflicts: values };
    let duplicates = DuplicatesStatus {
        last: vec![one, DuplicateStatus { age_seconds: None, ..one }],
        sources: vec![source],
    };
    let kind =
        KindStatus { kind: "pay".to_owned(), asked_seconds: 60.0, window_seconds: 60.0, window_ids: 1 };
    let mut worker = WorkerStatus {
        notes: vec!["a note".to_owned()],
        reduced_records: Some(100),
        kinds: vec![kind],
        duplicates,
        ..running()
    };
    let mut starting = worker.partitions[0].clone();
    worker.partitions[0].reason = Some("a reason".to_owned());
    worker.partitions[0].window.limit = Some("a limit".to_owned());
    (starting.partition, starting.next, starting.committed) = (6, None, None);
    (starting.lag_records, starting.window_ids) = (None, None);
    worker.partitions.push(starting);
    server.status.publish(0, worker);
    let standby = StandbyStatus {
        journals: 2,
        complete: 1,
        lag_records: Some(7),
        refused: Some("why".to_owned()),
        blocks: None,
        slow: Some("waits".to_owned()),
    };
    let client = ClientStatus { round_trip_seconds: 0.1, ..ClientStatus::default() };
    server.status.update(|it| {
        it.identity_rule = Some("ab".to_owned());
        (it.noted_role, it.active) = (Role::Spare, Some("a at 10.0.0.7".to_owned()));
        it.members = [("a at 10.0.0.7".to_owned(), 3)].into();
        it.standby = Some(standby);
        it.clients = [(ClientLabel::Consumer, client), (ClientLabel::Producer, client)].into();
    });
    for _ in 0..100 {
        server.metrics.duplicate_age().observe(3.0);
    }
}

/// Bodies that are valid, with this answer, and others.
fn forget_all(client: &mut Client<'_>, server: &Server, identity: &str, forgotten: u16) {
    for body in [
        json!({"id": "x"}),
        json!({"id": ["x"], "partition": 0}),
        json!({"id": "x", "partition": null}),
        json!({"identity": identity}),
    ] {
        assert_eq!(client.forget(server, &body), forgotten);
    }
    for body in [
        json!({}),
        json!({"id": 1}),
        json!({"id": "x", "what": 1}),
        json!({"id": "x", "partition": "0"}),
        json!({"id": "x", "identity": identity}),
    ] {
        assert_eq!(client.forget(server, &body), 400, "{body}");
    }
}

/// Requests everything that the server can answer, except an error of its own.
fn request_all(client: &mut Client<'_>) {
    let text = str::to_owned;
    let token = format!("Authorization: Bearer {SECRET}\r\n");
    let json = format!("{token}Content-Type: application/json\r\n");
    let without = Server::start(ClientLimits::default());
    for path in ["/", "/page.js", "/favicon.ico", "/status.json", "/config", "/metrics", "/livez", "/readyz"]
    {
        client.send(&without, &format!("GET {path}"), "", b"");
    }
    fill(&without);
    without.status.update(|it| it.standby = Some(StandbyStatus::default()));
    client.send(&without, "GET /status.json", "", b"");
    fill(&without);
    for path in ["/status.json", "/readyz"] {
        client.send(&without, &format!("GET {path}"), "", b"");
    }
    without.status.fail("a reason");
    client.send(&without, "GET /livez", "", b"");
    let admin = AdminApi { token: Token::new(SECRET), log: logging(), ..AdminApi::default() };
    let starting = Server::start_with(ClientLimits::default(), admin);
    for line in ["GET /state?id=x", "POST /forget", "POST /log"] {
        assert_eq!(client.send(&without, line, &json, b"{\"id\":\"x\"}"), 403);
        assert_eq!(client.send(&starting, line, "", b"{\"id\":\"x\"}"), 401);
        let code = client.send(&starting, line, &json, b"{\"id\":\"x\"}");
        assert_eq!(code, if line == "POST /log" { 400 } else { 503 }, "{line}");
        if line.starts_with("POST") {
            assert_eq!(client.send(&starting, line, &json, &vec![b'x'; 64 * 1024 + 1]), 413);
        }
    }
    assert_eq!(client.send(&starting, "POST /log", &token, b"debug"), 200);
    assert_eq!(client.send(&starting, "POST /log", &token, b"\xff"), 400);

    let exact = OwnerPlace {
        journal: 0,
        partition: Some(0),
        kind: Some(text("pay")),
        offset: Some(7),
        time_ms: 0,
        part: WindowPart::Exact,
    };
    let bloom =
        OwnerPlace { partition: None, kind: None, offset: None, part: WindowPart::Bloom, ..exact.clone() };
    for (places, not_ready, found, forgotten) in [
        (vec![exact.clone(), bloom], vec![], 200, 200),
        (vec![], vec![], 404, 404),
        (vec![exact], vec![1], 200, 503),
        (vec![], vec![1], 503, 503),
    ] {
        let answer = Answer { identity: text("ab"), places, looked_into: vec![0], not_ready };
        let server = answering(ClientLimits::default(), Duration::ZERO, answer);
        let identity = "0123456789abcdef0123456789abcdef";
        for query in ["id=x".to_owned(), "id=x&partition=0".to_owned(), format!("identity={identity}")] {
            assert_eq!(client.send(&server, &format!("GET /state?{query}"), &token, b""), found);
        }
        assert_eq!(client.send(&server, "GET /state?what=x", &token, b""), 400);
        forget_all(client, &server, identity, forgotten);
        assert_eq!(client.send(&server, "POST /forget", &token, b"{\"id\":\"x\"}"), 415);
    }
}

#[test]
fn the_specification_and_the_server_agree() {
    let specification = specification();
    let comparison = Comparison { specification: &specification, found: Fields::new() };
    let mut client = Client { comparison, answered: BTreeSet::new() };
    request_all(&mut client);
    // What a panic would cause.
    let mut expected = declared(&specification);
    expected.retain(|[_, _, code, _]| code != "500");
    assert_eq!(client.answered, expected);
    // Each field was there, each that may be null was null, and each that is not required was absent.
    let (found, declared) = (&client.comparison.found, client.comparison.declared_fields());
    let differing: Vec<_> = found.symmetric_difference(&declared).collect();
    assert!(differing.is_empty() && declared.len() > 100, "{differing:?}");
}

#[test]
fn the_specification_has_every_route_and_no_other() {
    let specification = specification();
    assert_eq!(specification["info"]["version"], env!("CARGO_PKG_VERSION"));
    let routes = include_str!("../../src/http/routes.rs").split(".route(\"").skip(1);
    let routes: BTreeSet<(String, String)> = routes
        .map(|rest| {
            let (path, rest) = rest.split_once("\", ").unwrap();
            (path.to_owned(), rest.split('(').next().unwrap().to_owned())
        })
        .collect();
    let paths = specification["paths"].as_object().unwrap().iter();
    let declared: BTreeSet<(String, String)> = paths
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|it| (path.clone(), it.clone())))
        .collect();
    assert!(declared.len() > 8, "{declared:?}");
    assert_eq!(routes, declared);
    let server = Server::start(ClientLimits::default());
    for (path, method) in declared {
        let other = if method == "get" { "POST" } else { "GET" };
        let answer = server.request(other, &path);
        let allow = format!("\r\nallow: {}\r\n", method.to_uppercase());
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains(&allow), "{path}: {answer}");
    }
}
