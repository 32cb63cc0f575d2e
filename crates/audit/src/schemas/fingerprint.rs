//! CRC-64-AVRO of the parsing canonical form of a schema.

use serde_json::Value;

/// The fingerprint; nothing for a text that is no Avro schema.
pub(super) fn fingerprint(text: &str) -> Option<u64> {
    let form = form(&serde_json::from_str(text).ok()?, None, &mut Vec::new())?;
    let table: Vec<u64> = (0..256).map(remainder).collect();
    let mut crc = POLYNOMIAL;
    for byte in form.bytes() {
        let [low, ..] = crc.to_le_bytes();
        crc = (crc >> 8) ^ table.get(usize::from(low ^ byte))?;
    }
    Some(crc)
}

/// As in the specification of Avro.
const POLYNOMIAL: u64 = 0xc15d_213a_a4d7_a795;

fn remainder(of: u64) -> u64 {
    (0..8).fold(of, |rest, _| if rest % 2 == 1 { (rest / 2) ^ POLYNOMIAL } else { rest / 2 })
}

/// The canonical text of a schema. `defined` are the full names so far.
fn form(schema: &Value, namespace: Option<&str>, defined: &mut Vec<String>) -> Option<String> {
    let of = match schema {
        Value::String(name) => return Some(format!("\"{}\"", used(name, namespace, defined))),
        Value::Array(branches) => {
            let branches: Option<Vec<_>> = branches.iter().map(|it| form(it, namespace, defined)).collect();
            return Some(format!("[{}]", branches?.join(",")));
        }
        other => other.get("type")?,
    };
    let part = |name: &str| schema.get(name);
    let Some(of) = of.as_str() else { return form(of, namespace, defined) };
    let (kind, rest) = match of {
        "array" => {
            return Some(format!(
                "{{\"type\":\"array\",\"items\":{}}}",
                form(part("items")?, namespace, defined)?
            ));
        }
        "map" => {
            return Some(format!(
                "{{\"type\":\"map\",\"values\":{}}}",
                form(part("values")?, namespace, defined)?
            ));
        }
        "fixed" => ("fixed", format!("\"size\":{}", part("size")?.as_u64()?)),
        "enum" => {
            let symbols = part("symbols")?.as_array()?.iter().map(|it| Some(format!("\"{}\"", it.as_str()?)));
            ("enum", format!("\"symbols\":[{}]", symbols.collect::<Option<Vec<_>>>()?.join(",")))
        }
        "record" | "error" => ("record", String::new()),
        name => return Some(format!("\"{}\"", used(name, namespace, defined))),
    };
    let own = part("namespace").and_then(Value::as_str).or(namespace);
    let full = super::avro::in_namespace(part("name")?.as_str()?, own);
    defined.push(full.clone());
    let rest = if kind == "record" {
        let inner = full.rsplit_once('.').map(|(namespace, _)| namespace);
        let mut fields = Vec::new();
        for field in part("fields")?.as_array()? {
            let of = form(field.get("type")?, inner, defined)?;
            fields.push(format!("{{\"name\":\"{}\",\"type\":{of}}}", field.get("name")?.as_str()?));
        }
        format!("\"fields\":[{}]", fields.join(","))
    } else {
        rest
    };
    Some(format!("{{\"name\":\"{full}\",\"type\":\"{kind}\",{rest}}}"))
}

/// A name as it is used: in full, if it is defined.
fn used(name: &str, namespace: Option<&str>, defined: &[String]) -> String {
    const PRIMITIVE: [&str; 8] = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"];
    let full = super::avro::in_namespace(name, namespace);
    if !PRIMITIVE.contains(&name) && defined.contains(&full) { full } else { name.to_owned() }
}
