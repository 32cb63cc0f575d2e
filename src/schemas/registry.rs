//! The client of a registry with the API of the Confluent Schema Registry, or the own one of Apicurio Registry (versions 2 and 3).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::RequestBuilder;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};
use ureq::typestate::WithoutBody;

use super::builtin;
use crate::config::{SchemasConfig, read_small_file};
use crate::dedupe::{Frame, SchemaId};

/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of [`Registry::check`].
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest response, bytes.
const RESPONSE_MAX: u64 = 16 << 20;
/// Most schemas that one schema may refer to.
const REFERENCES_MAX: usize = 1_000;

/// The alerts of a server that does not accept the certificate of the client.
const CLIENT_REJECTED: [&str; 5] = [
    "alert certificate",
    "alert bad certificate",
    "alert unknown ca",
    "alert unsupported certificate",
    "alert handshake failure",
];

/// A schema as the registry stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaText {
    /// `AVRO`, `PROTOBUF` or `JSON`.
    pub format: String,
    /// The schema.
    pub text: String,
    /// The name and text of each schema that it refers to, after those that this one refers to.
    pub references: Vec<(String, String)>,
}

/// Why a schema cannot be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchError {
    /// The request, and what is wrong.
    pub what: String,
    /// The registry has responded that it does not have the schema, or one that it refers to.
    pub is_unregistered: bool,
}

impl From<String> for FetchError {
    fn from(what: String) -> Self {
        Self { what, is_unregistered: false }
    }
}

/// The references followed so far. Of several versions under one name the first is used, as by the serializers of Confluent: a
/// schema cannot be compiled with two definitions of a name.
#[derive(Default)]
struct Visited {
    names: HashSet<String>,
    paths: HashSet<String>,
}

/// How requests are authorized. The files are read for each request: a token may be renewed.
#[derive(Debug)]
enum Authorization {
    Open,
    Basic { username: String, password_file: PathBuf },
    Bearer { token_file: PathBuf },
}

impl Authorization {
    /// What to do when the registry rejects it, as the end of a message.
    fn advice(&self) -> String {
        match self {
            Self::Open => {
                "; set schemas.username and schemas.password_file, or schemas.token_file".to_owned()
            }
            Self::Basic { username, password_file } => format!(
                "; correct the password of {username} in {} (schemas.password_file), or its rights",
                password_file.display()
            ),
            Self::Bearer { token_file } => format!(
                "; write a valid token to {} (schemas.token_file), or correct its rights",
                token_file.display()
            ),
        }
    }
}

/// A registry. Its requests block.
#[derive(Debug)]
pub struct Registry {
    agent: ureq::Agent,
    /// Its address.
    pub(super) url: String,
    access: Authorization,
    is_apicurio: bool,
}

/// The error codes with which a registry answers that it does not have a subject, a version or a schema.
const MISSING: [u64; 3] = [40401, 40402, 40403];
/// The names of errors with which Apicurio answers that; to a wrong URL it answers `NotFoundException`.
const MISSING_NAMES: [&str; 3] =
    ["ArtifactNotFoundException", "ContentNotFoundException", "VersionNotFoundException"];
/// The path of schemas by GUID.
const GUIDS: &str = "schemas/guids/";

impl Registry {
    /// A client of the configured registry; `None` when none is configured. Fails when a file is not usable.
    pub fn open(config: &SchemasConfig) -> Result<Option<Self>, String> {
        let Some(url) = &config.registry else { return Ok(None) };
        let access = match (&config.username, &config.password_file, &config.token_file) {
            (Some(username), Some(password_file), _) => {
                Authorization::Basic { username: username.clone(), password_file: password_file.clone() }
            }
            (_, _, Some(token_file)) => Authorization::Bearer { token_file: token_file.clone() },
            _ => Authorization::Open,
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls(config)?)
            .build()
            .new_agent();
        let is_apicurio = matches!(config.frame, Frame::Apicurio | Frame::ApicurioContent);
        let registry = Self { agent, url: url.trim_end_matches('/').to_owned(), access, is_apicurio };
        registry.authorization()?;
        Ok(Some(registry))
    }

    /// The schema with this id, and those that it refers to. The error names the request.
    pub fn schema(&self, id: SchemaId) -> Result<SchemaText, FetchError> {
        let none = |what: String| FetchError { what, is_unregistered: true };
        let path = match (self.is_apicurio, id) {
            // Ids are positive, and registries answer to others as to a wrong URL.
            (false, SchemaId::Number(number)) if number.cast_signed() < 0 => {
                return Err(none(format!("{id} is no schema id: it is negative")));
            }
            (true, SchemaId::Global(number) | SchemaId::Content(number)) if number.cast_signed() < 0 => {
                return Err(none(format!("{id} is no schema id: it is negative")));
            }
            (false, SchemaId::Number(id)) => format!("schemas/ids/{id}"),
            (false, SchemaId::Guid(_)) => format!("{GUIDS}{}", id.text()),
            (true, SchemaId::Global(id)) => format!("ids/globalIds/{id}"),
            (true, SchemaId::Content(id)) => format!("ids/contentIds/{id}"),
            _ => {
                let api = if self.is_apicurio { "of Apicurio" } else { "of Confluent" };
                return Err(none(format!("{}, with the API {api}, has no schemas named as {id}", self.url)));
            }
        };
        let of = self.found(&path)?;
        let mut references = Vec::new();
        self.add_references(&of, &mut Visited::default(), &mut references)?;
        let format = of.get("schemaType").and_then(Value::as_str).unwrap_or("AVRO").to_owned();
        let text = self.text(&of)?;
        if format == "PROTOBUF" {
            builtin::add_imported(&text, &mut references);
        }
        Ok(SchemaText { format, text, references })
    }

    /// Fails when the registry cannot be reached, or rejects this client. Any other status will do: not every registry has the path.
    pub fn check(&self) -> Result<(), String> {
        let url = format!("{}/schemas/types", self.url);
        let request = self.authorized(&url)?.config().timeout_global(Some(CHECK_TIMEOUT)).build();
        let status = request.call().map_err(|error| failed(&url, &error))?.status();
        match status.as_u16() {
            401 | 403 => Err(format!("GET {url}: {status}{}", self.access.advice())),
            500.. => Err(format!("GET {url}: {status}; check the schema registry")),
            _ => Ok(()),
        }
    }

    fn text(&self, of: &Value) -> Result<String, String> {
        let text = of.get("schema").and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| format!("{} returned no schema", self.url))
    }

    fn add_references(
        &self,
        of: &Value,
        visited: &mut Visited,
        texts: &mut Vec<(String, String)>,
    ) -> Result<(), FetchError> {
        for reference in of.get("references").and_then(Value::as_array).into_iter().flatten() {
            let name = reference.get("name").and_then(Value::as_str);
            let (Some(name), Some(path)) = (name, self.path_of(reference)) else {
                let what = format!("{} returned a reference without name, subject or version", self.url);
                return Err(what.into());
            };
            if !visited.names.insert(name.to_owned()) || !visited.paths.insert(path.clone()) {
                continue;
            }
            if visited.paths.len() > REFERENCES_MAX {
                return Err(format!("{} returned more than {REFERENCES_MAX} references", self.url).into());
            }
            let found = self.found(&path)?;
            self.add_references(&found, visited, texts)?;
            texts.push((name.to_owned(), self.text(&found)?));
        }
        Ok(())
    }

    /// The path of a schema that another one refers to.
    fn path_of(&self, reference: &Value) -> Option<String> {
        let text = |name| reference.get(name).and_then(Value::as_str);
        if self.is_apicurio {
            let [group, artifact] = [text("groupId").unwrap_or("default"), text("artifactId")?].map(escaped);
            return Some(format!(
                "groups/{group}/artifacts/{artifact}/versions/{}",
                escaped(text("version")?)
            ));
        }
        let version = reference.get("version").and_then(Value::as_u64)?;
        // A schema that is in use may refer to one that was deleted later.
        Some(format!("subjects/{}/versions/{version}?deleted=true", escaped(text("subject")?)))
    }

    /// The schema at this path as the API of Confluent returns it. Apicurio returns the content alone, whose type is seen: Protobuf is no JSON, and a JSON
    /// schema names itself.
    fn found(&self, path: &str) -> Result<Value, FetchError> {
        if !self.is_apicurio {
            return self.get(path);
        }
        // From version 3 on a version of an artifact is an object.
        let is_object = path.starts_with("groups/") && self.url.ends_with("/v3");
        let text = self.request(&format!("{path}{}", if is_object { "/content" } else { "" }))?;
        let references = self.get(&format!("{path}/references"))?;
        let of = match serde_json::from_str::<Value>(&text) {
            Ok(schema) if schema.get("$schema").is_some() => "JSON",
            Ok(_) => "AVRO",
            Err(_) => "PROTOBUF",
        };
        Ok(json!({ "schema": text, "schemaType": of, "references": references }))
    }

    fn get(&self, path: &str) -> Result<Value, FetchError> {
        let body = self.request(path)?;
        let is_not_json = |_| format!("GET {}/{path}: the response is not JSON", self.url).into();
        serde_json::from_str(&body).map_err(is_not_json)
    }

    fn request(&self, path: &str) -> Result<String, FetchError> {
        let url = format!("{}/{path}", self.url);
        let accepted = "application/vnd.schemaregistry.v1+json, application/json";
        let accepted = if self.is_apicurio { "*/*" } else { accepted };
        let failed = |error: ureq::Error| failed(&url, &error);
        let mut response = self.authorized(&url)?.header("Accept", accepted).call().map_err(failed)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(RESPONSE_MAX).read_to_string().map_err(failed)?;
        if status.is_success() {
            return Ok(body);
        }
        let parsed: Option<Value> = serde_json::from_str(&body).ok();
        let message = parsed.as_ref().and_then(|it| it.get("message")).and_then(Value::as_str);
        let message = message.map(|it| format!(": {it}")).unwrap_or_default();
        let advice = match status.as_u16() {
            401 | 403 => self.access.advice(),
            _ => String::new(),
        };
        // A wrong URL has a 404 with another code. A registry without GUIDs has none of them, and answers to all as to a wrong URL.
        let code = parsed.as_ref().and_then(|it| it.get("error_code")).and_then(Value::as_u64);
        let name = parsed.as_ref().and_then(|it| it.get("name")).and_then(Value::as_str);
        let is_missing = code.is_some_and(|code| MISSING.contains(&code))
            || self.is_apicurio && name.is_some_and(|name| MISSING_NAMES.contains(&name));
        let is_unregistered = status.as_u16() == 404 && (path.starts_with(GUIDS) || is_missing);
        Err(FetchError { what: format!("GET {url}: {status}{message}{advice}"), is_unregistered })
    }

    fn authorized(&self, url: &str) -> Result<RequestBuilder<WithoutBody>, String> {
        let request = self.agent.get(url);
        Ok(match self.authorization()? {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        })
    }

    fn authorization(&self) -> Result<Option<String>, String> {
        Ok(match &self.access {
            Authorization::Open => None,
            Authorization::Basic { username, password_file } => {
                let password = secret("password_file", password_file)?;
                Some(format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
            }
            Authorization::Bearer { token_file } => {
                Some(format!("Bearer {}", secret("token_file", token_file)?))
            }
        })
    }
}

/// The text of a failed request, with the action where it is about certificates.
fn failed(url: &str, error: &ureq::Error) -> String {
    if matches!(error, ureq::Error::Timeout(ureq::Timeout::Global)) {
        return format!("GET {url}: no whole response in time; check the schema registry");
    }
    let error = error.to_string();
    let advice = if error.contains("certificate verify failed") {
        "; the certificate of the registry is not accepted: set schemas.ca_file to the file with the certificate of the \
         authority that issued it, and check that it has not expired and names the host in schemas.registry"
    } else if CLIENT_REJECTED.iter().any(|alert| error.contains(alert)) {
        "; the registry does not accept the certificate of this client: set schemas.certificate_file and \
         schemas.private_key_file to one that has not expired and is issued by an authority that the registry trusts"
    } else {
        ""
    };
    format!("GET {url}: {error}{advice}")
}

fn file(key: &str, path: &Path) -> Result<Vec<u8>, String> {
    read_small_file(path)
        .map_err(|error| format!("schemas.{key} = {}: the file cannot be read: {error}", path.display()))
}

fn secret(key: &str, path: &Path) -> Result<String, String> {
    let text = String::from_utf8(file(key, path)?).ok().map(|text| text.trim().to_owned());
    let is_usable = |text: &String| !text.is_empty() && !text.contains(|c: char| c.is_ascii_control());
    text.filter(is_usable).ok_or_else(|| {
        format!("schemas.{key} = {}: the file does not contain one line of text", path.display())
    })
}

fn tls(config: &SchemasConfig) -> Result<TlsConfig, String> {
    let mut tls =
        TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier);
    if let Some(path) = &config.ca_file {
        let certificates = certificates("ca_file", path)?;
        tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates)));
    }
    if let (Some(certificate), Some(key)) = (&config.certificate_file, &config.private_key_file) {
        let chain = certificates("certificate_file", certificate)?;
        let key = PrivateKey::from_pem(&file("private_key_file", key)?)
            .map_err(|error| format!("schemas.private_key_file = {}: {error}", key.display()))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(tls.build())
}

fn certificates(key: &str, path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = file(key, path)?;
    let parsed = ureq::tls::parse_pem(&pem).filter_map(|item| match item {
        Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let invalid = |why: String| format!("schemas.{key} = {}: {why}", path.display());
    let all: Vec<_> =
        parsed.collect::<Result<_, _>>().map_err(|error: ureq::Error| invalid(error.to_string()))?;
    if all.is_empty() { Err(invalid("the file contains no certificate in PEM".to_owned())) } else { Ok(all) }
}

/// A segment of a path.
fn escaped(segment: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    segment
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
