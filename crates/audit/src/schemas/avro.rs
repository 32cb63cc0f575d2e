//! The binary encoding of Avro.
//!
//! It is read here and not with `apache-avro` 0.22, which decodes whole records: one that is damaged behind its id would have no id
//! here, but one in the service, and its copies would count as lost. Nor does that library limit the depth and the memory of a value.

use std::borrow::Cow;
use std::collections::BTreeMap;

use num_bigint::{BigInt, Sign};
use serde_json::Value;

use super::protobuf::signed;

/// A schema. A definition is stored under its full name, and every use of it is the name.
#[derive(Debug)]
pub(super) struct Avro {
    root: Shape,
    names: BTreeMap<String, Shape>,
}

#[derive(Debug, Clone)]
enum Shape {
    Null,
    Boolean,
    Int,
    Long,
    /// `float` and `double`, by their number of bytes.
    Real(usize),
    Bytes(Meaning),
    Text,
    Fixed(usize, Meaning),
    Symbols(Vec<String>),
    Array(Box<Shape>),
    Map(Box<Shape>),
    Union(Vec<Shape>),
    Record(Vec<(String, Shape)>),
    Named(String),
}

#[derive(Debug, Clone, Copy)]
enum Meaning {
    None,
    Scale(usize),
    Uuid,
}

/// What is to be skipped.
enum Skip<'s> {
    One(&'s Shape),
    /// Items of an array or map, as many as are left of the block, and then the blocks behind it.
    Blocks {
        item: &'s Shape,
        left: u64,
        keyed: bool,
    },
}

impl Avro {
    pub fn parse(text: &str, references: &[(String, String)]) -> Result<Self, String> {
        let mut names = BTreeMap::new();
        let mut parse = |text: &str| {
            let schema: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            shape(&schema, None, &mut names).ok_or_else(|| "it is not an Avro schema".to_owned())
        };
        for (_, reference) in references {
            parse(reference)?;
        }
        let root = parse(text)?;
        Ok(Self { root, names })
    }

    /// The scalar at this path; the full name of the document's type if that is empty.
    pub fn find<'d>(&self, document: &'d [u8], path: &[String]) -> Option<Cow<'d, [u8]>> {
        let (mut at, mut shape, is_name, mut path) = (document, &self.root, path.is_empty(), path.iter());
        loop {
            shape = match shape {
                Shape::Named(name) if is_name => return Some(name.clone().into_bytes().into()),
                Shape::Named(name) => self.names.get(name)?,
                Shape::Union(branches) => branches.get(usize::try_from(signed(&mut at)?).ok()?)?,
                Shape::Record(fields) => {
                    let name = path.next()?;
                    let (before, found) =
                        fields.split_at(fields.iter().position(|(field, _)| field == name)?);
                    before.iter().try_for_each(|(_, field)| self.skip(&mut at, field))?;
                    &found.first()?.1
                }
                Shape::Map(values) => {
                    self.search(&mut at, values, path.next()?)?;
                    values
                }
                Shape::Array(items) => {
                    let token = path.next()?;
                    let index: u64 = token.parse().ok().filter(|index: &u64| index.to_string() == *token)?;
                    self.advance(&mut at, items, index)?;
                    items
                }
                scalar => return if path.next().is_none() { text(scalar, &mut at) } else { None },
            };
        }
    }

    /// Whether the document is one value.
    pub fn is_whole(&self, mut document: &[u8]) -> bool {
        self.skip(&mut document, &self.root).is_some() && document.is_empty()
    }

    fn search(&self, at: &mut &[u8], values: &Shape, key: &str) -> Option<()> {
        loop {
            let (count, _) = block(at)?;
            if count == 0 {
                return None;
            }
            for _ in 0..count {
                if prefixed(at)? == key.as_bytes() {
                    return Some(());
                }
                self.skip(at, values)?;
            }
        }
    }

    fn advance(&self, at: &mut &[u8], items: &Shape, mut index: u64) -> Option<()> {
        loop {
            let (count, size) = block(at)?;
            if count == 0 {
                return None;
            }
            let skipped = index.min(count);
            match size {
                Some(size) if skipped == count => drop(take(at, size)?),
                _ if self.is_nothing(items, 64) => {}
                _ => (0..skipped).try_for_each(|_| self.skip(at, items))?,
            }
            if index < count {
                return Some(());
            }
            index -= count;
        }
    }

    fn skip(&self, at: &mut &[u8], shape: &Shape) -> Option<()> {
        let mut left = vec![Skip::One(shape)];
        while let Some(next) = left.pop() {
            let one = match next {
                Skip::Blocks { item, left: 0, keyed } => {
                    let (count, size) = block(at)?;
                    if let Some(size) = size {
                        take(at, size)?;
                        left.push(Skip::Blocks { item, left: 0, keyed });
                    } else if count > 0 {
                        let count = if !keyed && self.is_nothing(item, 64) { 0 } else { count };
                        left.push(Skip::Blocks { item, left: count, keyed });
                    }
                    continue;
                }
                Skip::Blocks { item, left: count, keyed } => {
                    left.push(Skip::Blocks { item, left: count - 1, keyed });
                    if keyed {
                        prefixed(at)?;
                    }
                    item
                }
                Skip::One(shape) => shape,
            };
            match one {
                Shape::Named(name) => left.push(Skip::One(self.names.get(name)?)),
                Shape::Union(branches) => {
                    left.push(Skip::One(branches.get(usize::try_from(signed(at)?).ok()?)?));
                }
                Shape::Record(_) if self.is_nothing(one, 64) => {}
                Shape::Record(fields) => left.extend(fields.iter().rev().map(|(_, field)| Skip::One(field))),
                Shape::Array(item) => left.push(Skip::Blocks { item, left: 0, keyed: false }),
                Shape::Map(item) => left.push(Skip::Blocks { item, left: 0, keyed: true }),
                Shape::Null => {}
                Shape::Boolean => drop(boolean(at)?),
                Shape::Int | Shape::Long | Shape::Symbols(_) => drop(signed(at)?),
                Shape::Real(size) | Shape::Fixed(size, _) => drop(take(at, *size as u64)?),
                Shape::Bytes(_) | Shape::Text => drop(prefixed(at)?),
            }
        }
        Some(())
    }

    /// Whether a value takes no byte.
    fn is_nothing(&self, shape: &Shape, depth: u8) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        match shape {
            Shape::Null | Shape::Fixed(0, _) => true,
            Shape::Named(name) => self.names.get(name).is_some_and(|it| self.is_nothing(it, depth)),
            Shape::Record(fields) => fields.iter().all(|(_, field)| self.is_nothing(field, depth)),
            _ => false,
        }
    }
}

/// Parses a schema, and adds its definitions to `names`.
fn shape(schema: &Value, namespace: Option<&str>, names: &mut BTreeMap<String, Shape>) -> Option<Shape> {
    let object = match schema {
        Value::String(name) => return Some(named(name, namespace, names)),
        Value::Array(branches) => {
            let branches = branches.iter().map(|branch| shape(branch, namespace, names));
            return branches.collect::<Option<_>>().map(Shape::Union);
        }
        Value::Object(object) => object,
        _ => return None,
    };
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let of = object.get("type")?;
    let Some(of) = of.as_str() else { return shape(of, namespace, names) };
    match of {
        "array" => return Some(Shape::Array(Box::new(shape(object.get("items")?, namespace, names)?))),
        "map" => return Some(Shape::Map(Box::new(shape(object.get("values")?, namespace, names)?))),
        "bytes" => return Some(Shape::Bytes(meaning(schema, 0))),
        "fixed" | "enum" | "record" | "error" => {}
        name => return Some(named(name, namespace, names)),
    }
    let full = in_namespace(text("name")?, text("namespace").or(namespace));
    let inner = full.rsplit_once('.').map(|(namespace, _)| namespace.to_owned());
    // Uses inside of the definition are names.
    names.insert(full.clone(), Shape::Null);
    let defined = match of {
        "fixed" => {
            let size = usize::try_from(object.get("size")?.as_u64()?).ok()?;
            Shape::Fixed(size, meaning(schema, size))
        }
        "enum" => {
            let symbols = object.get("symbols")?.as_array()?.iter();
            Shape::Symbols(symbols.map(|it| it.as_str().map(str::to_owned)).collect::<Option<_>>()?)
        }
        _ => {
            let mut fields = Vec::new();
            for field in object.get("fields")?.as_array()? {
                let of = shape(field.get("type")?, inner.as_deref(), names)?;
                fields.push((field.get("name")?.as_str()?.to_owned(), of));
            }
            Shape::Record(fields)
        }
    };
    names.insert(full.clone(), defined);
    Some(Shape::Named(full))
}

fn named(name: &str, namespace: Option<&str>, names: &BTreeMap<String, Shape>) -> Shape {
    match name {
        "null" => Shape::Null,
        "boolean" => Shape::Boolean,
        "int" => Shape::Int,
        "long" => Shape::Long,
        "float" => Shape::Real(4),
        "double" => Shape::Real(8),
        "bytes" => Shape::Bytes(Meaning::None),
        "string" => Shape::Text,
        other => {
            let full = in_namespace(other, namespace);
            Shape::Named(if names.contains_key(&full) { full } else { other.to_owned() })
        }
    }
}

pub(super) fn in_namespace(name: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) if !namespace.is_empty() && !name.contains('.') => format!("{namespace}.{name}"),
        _ => name.to_owned(),
    }
}

fn meaning(schema: &Value, size: usize) -> Meaning {
    let number = |key: &str| schema.get(key).map(|it| it.as_u64().filter(|it| u32::try_from(*it).is_ok()));
    match schema.get("logicalType").and_then(Value::as_str) {
        Some("uuid") if size == 16 => Meaning::Uuid,
        Some("decimal") => match (number("precision").flatten(), number("scale").unwrap_or(Some(0))) {
            // With more digits each text would be long: such a type is ignored, as an invalid one.
            (Some(precision @ 1..=1_000), Some(scale)) if scale <= precision => {
                usize::try_from(scale).map_or(Meaning::None, Meaning::Scale)
            }
            _ => Meaning::None,
        },
        _ => Meaning::None,
    }
}

/// The text of a scalar; `None` for null, and for bytes that do not match.
fn text<'d>(shape: &Shape, at: &mut &'d [u8]) -> Option<Cow<'d, [u8]>> {
    let text = match shape {
        Shape::Boolean => boolean(at)?.to_string(),
        Shape::Int => i32::try_from(signed(at)?).ok()?.to_string(),
        Shape::Long => signed(at)?.to_string(),
        Shape::Real(4) => f32::from_le_bytes(take(at, 4)?.try_into().ok()?).to_string(),
        Shape::Real(_) => f64::from_le_bytes(take(at, 8)?.try_into().ok()?).to_string(),
        Shape::Symbols(symbols) => symbols.get(usize::try_from(signed(at)?).ok()?)?.clone(),
        Shape::Text => {
            return std::str::from_utf8(prefixed(at)?).ok().map(|text| Cow::Borrowed(text.as_bytes()));
        }
        Shape::Bytes(meaning) => return meant(prefixed(at)?, *meaning),
        Shape::Fixed(size, meaning) => return meant(take(at, *size as u64)?, *meaning),
        _ => return None,
    };
    Some(text.into_bytes().into())
}

fn meant(bytes: &[u8], meaning: Meaning) -> Option<Cow<'_, [u8]>> {
    match meaning {
        Meaning::None => Some(bytes.into()),
        Meaning::Scale(scale) => decimal(bytes, scale).map(|text| text.into_bytes().into()),
        Meaning::Uuid => {
            let hex =
                |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
            let groups = [0..4, 4..6, 6..8, 8..10, 10..16].map(|group| bytes.get(group).map(hex));
            let groups: Option<Vec<String>> = groups.into_iter().collect();
            Some(groups?.join("-").into_bytes().into())
        }
    }
}

/// A number in two's complement, at most 256 bytes long, as text with `scale` digits after the point.
fn decimal(bytes: &[u8], scale: usize) -> Option<String> {
    if bytes.is_empty() || bytes.len() > 256 {
        return None;
    }
    let number = BigInt::from_signed_bytes_be(bytes);
    let digits = format!("{:0>1$}", number.magnitude().to_string(), scale + 1);
    let (whole, part) = digits.split_at_checked(digits.len().checked_sub(scale)?)?;
    let sign = if number.sign() == Sign::Minus { "-" } else { "" };
    let point = if part.is_empty() { "" } else { "." };
    Some(format!("{sign}{whole}{point}{part}"))
}

fn take<'d>(at: &mut &'d [u8], size: u64) -> Option<&'d [u8]> {
    let (taken, rest) = at.split_at_checked(usize::try_from(size).ok()?)?;
    *at = rest;
    Some(taken)
}

fn boolean(at: &mut &[u8]) -> Option<bool> {
    match take(at, 1)? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

/// A length, and as many bytes.
fn prefixed<'d>(at: &mut &'d [u8]) -> Option<&'d [u8]> {
    let size = signed(at)?;
    take(at, u64::try_from(size).ok()?)
}

/// The number of items of a block, and its size where that is stored. No items: the end.
fn block(at: &mut &[u8]) -> Option<(u64, Option<u64>)> {
    let count = signed(at)?;
    let size = if count < 0 { Some(u64::try_from(signed(at)?).ok()?) } else { None };
    Some((count.unsigned_abs(), size))
}
