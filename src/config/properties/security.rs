//! Properties of TLS and SASL that have no effect, or that the client rejects with a text that does not help.

use std::fs::{self, File};
use std::io;

use super::Properties;
use crate::config::problem::{Problem, ValueFault};
use crate::config::secret_files::FILE;

const PROTOCOL: &str = "security.protocol";
/// Properties that only connections with SASL use.
const OF_SASL: [&str; 4] = ["sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username"];
/// Properties of Kerberos, whose mechanism is the default of the client.
const OF_KERBEROS: &str = "sasl.kerberos.";
/// The certificates of the authorities: a file, a directory, or [`PROBE`].
const AUTHORITIES: &str = "ssl.ca.location";
/// The client searches the usual places.
const PROBE: &str = "probe";
/// Properties whose values are paths, and the property that takes the content instead.
const PATHS: [(&str, Option<&str>); 7] = [
    (AUTHORITIES, Some("ssl.ca.pem")),
    ("ssl.certificate.location", Some("ssl.certificate.pem")),
    ("ssl.key.location", Some("ssl.key.pem")),
    ("ssl.keystore.location", None),
    ("ssl.crl.location", None),
    ("sasl.oauthbearer.assertion.private.key.file", Some("sasl.oauthbearer.assertion.private.key.pem")),
    ("sasl.oauthbearer.assertion.jwt.template.file", None),
];

impl Properties {
    /// The problems of TLS and SASL. `typed` are the properties before the files of `NAME.file` were read.
    pub(in crate::config) fn security_problems(&self, typed: &Self) -> Vec<Problem> {
        let key = |name: &str| match typed.get(name) {
            Some(_) => format!("kafka.properties.{name}"),
            None => format!("kafka.properties.{name}{FILE}"),
        };
        let problem = |key, value, fault| Problem { key, value, origin: None, fault };
        let sasl = self.sasl_faults().into_iter().map(|(name, fault)| {
            // A missing property is named without the suffix, too.
            let key = if self.is_set(name) { key(name) } else { format!("kafka.properties.{name}") };
            problem(key, None, fault)
        });
        let paths = PATHS.iter().filter_map(|(name, text)| {
            let path = self.get(name)?;
            let fault = path_fault(name, *text, path)?;
            // The value may be a key instead of the path of one.
            Some(problem(key(name), Some(path).filter(|path| !is_pem(path)).map(str::to_owned), fault))
        });
        sasl.chain(paths).collect()
    }

    fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.is_empty())
    }

    /// Properties of SASL without SASL, or SASL without its mechanism. The client rejects an unknown protocol itself.
    fn sasl_faults(&self) -> Vec<(&'static str, ValueFault)> {
        let protocol = self.get(PROTOCOL).unwrap_or("plaintext").to_lowercase();
        match protocol.as_str() {
            "plaintext" | "ssl" => {
                let what = "has no effect without security.protocol = sasl_ssl or sasl_plaintext";
                let remedy = format!("set kafka.properties.\"{PROTOCOL}\", or leave it out");
                let given = OF_SASL.into_iter().filter(|name| self.is_set(name));
                given.map(|name| (name, ValueFault::new(what, remedy.clone()))).collect()
            }
            "sasl_plaintext" | "sasl_ssl" => {
                let has_mechanism =
                    ["sasl.mechanism", "sasl.mechanisms"].iter().any(|name| self.is_set(name));
                if has_mechanism || self.iter().any(|(name, _)| name.starts_with(OF_KERBEROS)) {
                    return Vec::new();
                }
                let remedy = format!(
                    "security.protocol = {protocol} needs it: give PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or \
                     GSSAPI (Kerberos), whichever the broker offers"
                );
                vec![("sasl.mechanism", ValueFault::new("is missing", remedy))]
            }
            _ => Vec::new(),
        }
    }
}

fn is_pem(value: &str) -> bool {
    value.contains("-----BEGIN") || value.contains('\n')
}

/// What is wrong with the value of a property that is a path. `text` is the property for the content itself.
fn path_fault(name: &str, text: Option<&str>, path: &str) -> Option<ValueFault> {
    let is_authorities = name == AUTHORITIES;
    if is_authorities && path == PROBE {
        return None;
    }
    if is_pem(path) {
        let remedy = text.map_or_else(
            || "give the path of a file".to_owned(),
            |text| format!("give the path of a file, or set kafka.properties.\"{text}\" to the content"),
        );
        return Some(ValueFault::new("is the content of a file, not its path", remedy));
    }
    let remedy = if is_authorities {
        "give a file with certificates that this process may read, a directory of such files, or probe"
    } else {
        "give a file that this process may read"
    };
    let what = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "does not exist".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
        Ok(found) if found.is_dir() && is_authorities => return None,
        Ok(found) if found.is_dir() => "is a directory".to_owned(),
        Ok(found) if !found.is_file() => "is not a regular file".to_owned(),
        Ok(_) => format!("cannot be read: {}", File::open(path).err()?),
    };
    Some(ValueFault::new(what, remedy))
}
