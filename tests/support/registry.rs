//! A schema registry in the test process: what a client of the Confluent Schema Registry requests for a record.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// Status, and body by path.
type Pages = Arc<Mutex<BTreeMap<String, (u16, Value)>>>;

/// The registry. Clones share it. Its thread ends with the process.
#[derive(Clone)]
pub struct StubRegistry {
    pub port: u16,
    pages: Pages,
    /// Paths that are found with `?deleted=true` only.
    deleted: Arc<Mutex<BTreeSet<String>>>,
    /// The headers `Authorization` that it received.
    pub authorized: Arc<Mutex<Vec<String>>>,
    required: Arc<Mutex<Option<String>>>,
}

impl StubRegistry {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let registry = Self {
            port,
            pages: Pages::default(),
            deleted: Arc::default(),
            authorized: Arc::default(),
            required: Arc::default(),
        };
        let shared = registry.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.answer(&stream);
            }
        });
        registry
    }

    /// From now on rejects requests without this header `Authorization`.
    pub fn require(&self, authorization: &str) {
        *self.required.lock().unwrap() = Some(authorization.to_owned());
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the response to a path without the slash before it.
    pub fn set(&self, path: &str, status: u16, body: Value) {
        self.pages.lock().unwrap().insert(format!("/{path}"), (status, body));
    }

    /// Deletes what is at this path, as a registry does at first: the response remains for clients that include deleted ones.
    pub fn delete(&self, path: &str) {
        self.deleted.lock().unwrap().insert(format!("/{path}"));
    }

    /// Registers an Avro schema.
    pub fn avro(&self, id: u32, schema: &str) {
        self.set(&format!("schemas/ids/{id}"), 200, json!({ "schema": schema }));
    }

    fn answer(&self, mut stream: &TcpStream) {
        let mut lines =
            BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let Some(path) = lines.next().and_then(|line| line.split(' ').nth(1).map(str::to_owned)) else {
            return;
        };
        let authorization = lines.filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
        });
        let authorization = authorization.last();
        self.authorized.lock().unwrap().extend(authorization.clone());
        let required = self.required.lock().unwrap().clone();
        let (status, body) = if required.is_some() && required != authorization {
            (401, json!({ "error_code": 401, "message": "the token is not accepted" }).to_string())
        } else {
            let (path, query) = path.split_once('?').unwrap_or((&path, ""));
            let is_visible = query == "deleted=true" || !self.deleted.lock().unwrap().contains(path);
            let found = self.pages.lock().unwrap().get(path).cloned().filter(|_| is_visible);
            found.map_or_else(|| (404, missing(path)), |(status, body)| (status, body.to_string()))
        };
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .ok();
    }
}

/// The body of a 404. A registry without GUIDs answers a request for one, or for an id that is no number of 31 bits, as any wrong URL.
fn missing(path: &str) -> String {
    let is_schema = path.strip_prefix("/schemas/ids/").is_some_and(|id| id.parse::<i32>().is_ok());
    if is_schema || path.starts_with("/subjects/") {
        json!({ "error_code": 40403, "message": "Schema not found" }).to_string()
    } else {
        "<html><body><h1>404 Not Found</h1></body></html>".to_owned()
    }
}
