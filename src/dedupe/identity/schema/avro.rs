//! Avro schemas.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

mod canonical;
mod read;

use read::Input;

/// Most types of a schema. A value is skipped by a loop over the types.
const TYPES_MAX: usize = 10_000;
/// Most digits of a decimal: the text of each value has as many digits as the scale.
const DIGITS_MAX: u32 = 1_000;

/// A parsed schema: its types refer to each other by their place in the list.
#[derive(Debug)]
pub struct AvroSchema {
    types: Vec<AvroType>,
    /// The full names of those that have one.
    names: HashMap<usize, String>,
    /// Whether a value of the type never takes a byte.
    empty: Vec<bool>,
    root: usize,
}

#[derive(Debug, PartialEq)]
enum AvroType {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes(BytesText),
    String,
    Fixed(usize, BytesText),
    Enum(Vec<String>),
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    Record(Vec<(String, usize)>),
}

/// The text of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BytesText {
    /// The bytes as they are.
    Raw,
    /// A decimal with this many digits after the point.
    Decimal(u32),
    /// Of 16 bytes.
    Uuid,
}

/// Why a text is not a schema that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AvroError {
    /// Not JSON.
    #[error("is not JSON: {0}")]
    Json(String),
    /// Neither a type nor the name of one.
    #[error("has no type {0}")]
    Unknown(String),
    /// A type without a part that it needs.
    #[error("has a type {0} without {1}")]
    Incomplete(String, &'static str),
    /// A name with two definitions.
    #[error("defines {0} twice")]
    Repeated(String),
    /// A record whose values would be infinite.
    #[error("has a record that contains itself")]
    Endless,
    /// Too many types.
    #[error("has more than 10,000 types")]
    TooLarge,
}

impl AvroSchema {
    /// Parses a schema. `references` are the texts of the schemas whose names it uses, each after those that it uses itself.
    pub fn parse<T: AsRef<str>>(text: &str, references: &[T]) -> Result<Self, AvroError> {
        let mut parser = Parser::default();
        for reference in references {
            parser.add(&json(reference.as_ref())?, "")?;
        }
        let root = parser.add(&json(text)?, "")?;
        let (types, names) = (parser.types, parser.names.into_iter());
        let empty = empty_types(&types)?;
        Ok(Self { types, names: names.map(|(name, place)| (place, name)).collect(), empty, root })
    }

    /// The scalar at this path: field names, keys of maps, indexes of arrays. Unions are passed through. `None` when there is
    /// none, or when the bytes up to its end do not match the schema. An empty path stands for the full name of the document's type.
    pub fn find<'d>(&self, document: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        Input::new(document).find(self, path)
    }

    /// Whether these bytes are one value of this schema.
    pub fn matches(&self, document: &[u8]) -> bool {
        let mut input = Input::new(document);
        input.skip(self, self.root).is_some() && input.is_at_end()
    }

    fn of(&self, place: usize) -> Option<&AvroType> {
        self.types.get(place)
    }

    fn is_empty(&self, place: usize) -> bool {
        self.empty.get(place).copied().unwrap_or(false)
    }
}

fn json(text: &str) -> Result<Value, AvroError> {
    serde_json::from_str(text).map_err(|error| AvroError::Json(error.to_string()))
}

/// The types read so far.
#[derive(Default)]
struct Parser {
    types: Vec<AvroType>,
    /// By full name.
    names: HashMap<String, usize>,
}

impl Parser {
    fn add(&mut self, schema: &Value, namespace: &str) -> Result<usize, AvroError> {
        match schema {
            Value::String(name) => self.named(name, namespace),
            Value::Array(branches) => {
                let branches: Vec<usize> =
                    branches.iter().map(|branch| self.add(branch, namespace)).collect::<Result<_, _>>()?;
                self.push(AvroType::Union(branches))
            }
            Value::Object(schema) => match schema.get("type") {
                Some(Value::String(name)) => self.complex(name, schema, namespace),
                Some(nested) => self.add(nested, namespace),
                None => Err(AvroError::Incomplete("object".to_owned(), "type")),
            },
            other => Err(AvroError::Unknown(other.to_string())),
        }
    }

    fn push(&mut self, of: AvroType) -> Result<usize, AvroError> {
        if self.types.len() >= TYPES_MAX {
            return Err(AvroError::TooLarge);
        }
        self.types.push(of);
        Ok(self.types.len() - 1)
    }

    fn named(&mut self, name: &str, namespace: &str) -> Result<usize, AvroError> {
        if let Some(primitive) = primitive(name) {
            return self.push(primitive);
        }
        let known = self.names.get(&full_name(name, namespace)).or_else(|| self.names.get(name));
        known.copied().ok_or_else(|| AvroError::Unknown(name.to_owned()))
    }

    fn complex(
        &mut self,
        of: &str,
        schema: &Map<String, Value>,
        namespace: &str,
    ) -> Result<usize, AvroError> {
        let need =
            |part: &'static str| schema.get(part).ok_or_else(|| AvroError::Incomplete(of.to_owned(), part));
        match of {
            "array" => {
                let items = self.add(need("items")?, namespace)?;
                self.push(AvroType::Array(items))
            }
            "map" => {
                let values = self.add(need("values")?, namespace)?;
                self.push(AvroType::Map(values))
            }
            "bytes" => self.push(AvroType::Bytes(decimal(schema).unwrap_or(BytesText::Raw))),
            "fixed" | "enum" | "record" | "error" => self.definition(of, schema, namespace),
            name => self.named(name, namespace),
        }
    }

    fn definition(&mut self, of: &str, schema: &Map<String, Value>, outer: &str) -> Result<usize, AvroError> {
        let missing = |part: &'static str| AvroError::Incomplete(of.to_owned(), part);
        let name = schema.get("name").and_then(Value::as_str).ok_or_else(|| missing("name"))?;
        let name = full_name(name, schema.get("namespace").and_then(Value::as_str).unwrap_or(outer));
        // The name is known inside of its own definition.
        let place = self.push(AvroType::Null)?;
        if self.names.insert(name.clone(), place).is_some() {
            return Err(AvroError::Repeated(name));
        }
        let namespace = name.rsplit_once('.').map_or("", |(namespace, _)| namespace);
        let list =
            |part: &'static str| schema.get(part).and_then(Value::as_array).ok_or_else(|| missing(part));
        let defined = match of {
            "fixed" => {
                let size = schema.get("size").and_then(Value::as_u64).and_then(|it| usize::try_from(it).ok());
                let size = size.ok_or_else(|| missing("size"))?;
                let is_uuid = size == 16 && logical(schema) == Some("uuid");
                let text = if is_uuid { Some(BytesText::Uuid) } else { decimal(schema) };
                AvroType::Fixed(size, text.unwrap_or(BytesText::Raw))
            }
            "enum" => {
                let symbols = list("symbols")?.iter().map(|it| it.as_str().map(str::to_owned));
                AvroType::Enum(symbols.collect::<Option<_>>().ok_or_else(|| missing("symbols"))?)
            }
            _ => {
                let mut fields = Vec::new();
                for field in list("fields")? {
                    let name = field.get("name").and_then(Value::as_str).ok_or_else(|| missing("fields"))?;
                    let of = field.get("type").ok_or_else(|| missing("fields"))?;
                    fields.push((name.to_owned(), self.add(of, namespace)?));
                }
                AvroType::Record(fields)
            }
        };
        self.types.splice(place..=place, [defined]).for_each(drop);
        Ok(place)
    }
}

fn primitive(name: &str) -> Option<AvroType> {
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" => AvroType::Int,
        "long" => AvroType::Long,
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" => AvroType::Bytes(BytesText::Raw),
        "string" => AvroType::String,
        _ => return None,
    })
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn logical(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("logicalType").and_then(Value::as_str)
}

/// An invalid logical type is ignored, as the specification requires.
fn decimal(schema: &Map<String, Value>) -> Option<BytesText> {
    let number = |name| schema.get(name).map(|it| it.as_u64().and_then(|it| u32::try_from(it).ok()));
    let precision = number("precision").flatten()?;
    let scale = number("scale").unwrap_or(Some(0))?;
    let is_valid =
        logical(schema) == Some("decimal") && (1..=DIGITS_MAX).contains(&precision) && scale <= precision;
    is_valid.then_some(BytesText::Decimal(scale))
}

/// Which types never take a byte. Fails for a record without an end.
fn empty_types(types: &[AvroType]) -> Result<Vec<bool>, AvroError> {
    let mut known = vec![None; types.len()];
    // A value of a record contains those of its fields; every other type takes a byte before one of its own values.
    let mut open: Vec<(usize, usize, bool)> = Vec::new();
    let mut is_open = vec![false; types.len()];
    for start in 0..types.len() {
        open.push((start, 0, true));
        while let Some((place, field, is_empty)) = open.last_mut() {
            let fields = match types.get(*place) {
                Some(AvroType::Record(fields)) => fields.as_slice(),
                other => {
                    *is_empty = matches!(other, Some(AvroType::Null | AvroType::Fixed(0, _)));
                    &[]
                }
            };
            if let Some((_, inner)) = fields.get(*field) {
                match known.get(*inner).copied().flatten() {
                    Some(inner) => {
                        *is_empty &= inner;
                        *field += 1;
                    }
                    None if is_open.get(*inner) == Some(&true) || inner == place => {
                        return Err(AvroError::Endless);
                    }
                    None => {
                        set(&mut is_open, *place, true);
                        open.push((*inner, 0, true));
                    }
                }
                continue;
            }
            set(&mut known, *place, Some(*is_empty));
            set(&mut is_open, *place, false);
            open.pop();
        }
    }
    Ok(known.into_iter().map(|it| it == Some(true)).collect())
}

fn set<T>(all: &mut [T], place: usize, value: T) {
    if let Some(slot) = all.get_mut(place) {
        *slot = value;
    }
}

#[cfg(test)]
mod tests;
