//! The parsing canonical form of a schema, and its fingerprint.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{AvroSchema, full_name, primitive};

/// CRC-64-AVRO of nothing, and its polynomial.
const EMPTY: u64 = 0xc15d_213a_a4d7_a795;

impl AvroSchema {
    /// CRC-64-AVRO of the parsing canonical form; `None` of a text that is no schema.
    pub fn fingerprint(text: &str) -> Option<u64> {
        let mut form = String::new();
        write(&serde_json::from_str(text).ok()?, "", &mut HashSet::new(), &mut form)?;
        let shifted = |crc: u64, _| (crc >> 1) ^ (EMPTY & (crc & 1).wrapping_neg());
        Some(form.bytes().fold(EMPTY, |crc, byte| (0..8).fold(crc ^ u64::from(byte), shifted)))
    }
}

fn write(schema: &Value, namespace: &str, names: &mut HashSet<String>, form: &mut String) -> Option<()> {
    match schema {
        Value::String(name) => {
            quote(&referred(name, namespace, names), form);
            Some(())
        }
        Value::Array(branches) => list(branches, form, |branch, form| write(branch, namespace, names, form)),
        Value::Object(of) => match of.get("type")? {
            Value::String(kind) => complex(kind, of, namespace, names, form),
            nested => write(nested, namespace, names, form),
        },
        _ => None,
    }
}

fn complex(
    kind: &str,
    of: &Map<String, Value>,
    outer: &str,
    names: &mut HashSet<String>,
    form: &mut String,
) -> Option<()> {
    let inner = match kind {
        "array" => Some("items"),
        "map" => Some("values"),
        _ => None,
    };
    if let Some(inner) = inner {
        form.extend(["{\"type\":\"", kind, "\",\"", inner, "\":"]);
        write(of.get(inner)?, outer, names, form)?;
        form.push('}');
        return Some(());
    }
    if !matches!(kind, "fixed" | "enum" | "record" | "error") {
        quote(&referred(kind, outer, names), form);
        return Some(());
    }
    let namespace = of.get("namespace").and_then(Value::as_str).unwrap_or(outer);
    let name = full_name(of.get("name")?.as_str()?, namespace);
    form.push_str("{\"name\":");
    quote(&name, form);
    let namespace = name.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
    names.insert(name);
    match kind {
        "fixed" => form.extend([",\"type\":\"fixed\",\"size\":", &of.get("size")?.as_u64()?.to_string()]),
        "enum" => {
            form.push_str(",\"type\":\"enum\",\"symbols\":");
            list(of.get("symbols")?.as_array()?, form, |symbol, form| {
                quote(symbol.as_str()?, form);
                Some(())
            })?;
        }
        _ => {
            form.push_str(",\"type\":\"record\",\"fields\":");
            list(of.get("fields")?.as_array()?, form, |field, form| {
                form.push_str("{\"name\":");
                quote(field.get("name")?.as_str()?, form);
                form.push_str(",\"type\":");
                write(field.get("type")?, &namespace, names, form)?;
                form.push('}');
                Some(())
            })?;
        }
    }
    form.push('}');
    Some(())
}

/// The name of a primitive type, or the full name of a definition.
fn referred(name: &str, namespace: &str, names: &HashSet<String>) -> String {
    let full = full_name(name, namespace);
    if primitive(name).is_none() && names.contains(&full) { full } else { name.to_owned() }
}

fn list(
    items: &[Value],
    form: &mut String,
    mut write: impl FnMut(&Value, &mut String) -> Option<()>,
) -> Option<()> {
    form.push('[');
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            form.push(',');
        }
        write(item, form)?;
    }
    form.push(']');
    Some(())
}

/// Names have no character that JSON escapes.
fn quote(name: &str, form: &mut String) {
    form.extend(["\"", name, "\""]);
}
