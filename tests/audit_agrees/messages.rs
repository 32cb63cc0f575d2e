//! A Protobuf message of all kinds of fields, generated and read with `prost-reflect`.

use fastrand::Rng;
use protox::prost_reflect::{DynamicMessage, MapKey, MessageDescriptor, ReflectMessage as _, Value};

pub const PROTO: &str = r#"syntax = "proto3";
message Root {
    optional double a = 1; optional float b = 2; optional int32 c = 3; optional int64 d = 4; optional uint32 e = 5;
    optional uint64 f = 6; optional sint32 g = 7; optional sint64 h = 8; optional fixed32 i = 9; optional fixed64 j = 10;
    optional sfixed32 k = 11; optional sfixed64 l = 12; optional bool m = 13; optional string n = 14; optional bytes o = 15;
    optional State p = 16; Root q = 17; repeated sint64 r = 18; repeated string s = 19; map<string, int32> t = 20;
    map<int64, Root> u = 21; oneof x { string v = 22; Root w = 23; } repeated Root y = 24; repeated fixed32 z = 25 [packed = false];
    int32 ca = 26; uint64 fa = 27; sint64 ha = 28; fixed32 ia = 29; bool ma = 30; string na = 31; bytes oa = 32; State pa = 33;
}
enum State { A = 0; B = 1; C = -5; }"#;
pub const PROTO_PATHS: [&str; 41] = [
    "/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h", "/i", "/j", "/k", "/l", "/m", "/n", "/o", "/p", "/q/n",
    "/q/q/d", "/r/0", "/r/2", "/s/0", "/s/1", "/t/k", "/t/l", "/u/5/n", "/u/-1/c", "/v", "/w/n", "/y/0/n",
    "/y/1/d", "/z/0", "/z/1", "/u/5/q/n", "/ca", "/fa", "/ha", "/ia", "/ma", "/na", "/oa", "/q/pa",
];

/// The file with the message.
struct One(String);

impl protox::file::FileResolver for One {
    fn open_file(&self, name: &str) -> Result<protox::file::File, protox::Error> {
        protox::file::File::from_source(name, &self.0)
    }
}

pub fn root() -> MessageDescriptor {
    compiled(PROTO.to_owned())
}

/// The same message with its maps written as lists of entries, which is the same on the wire. `prost-reflect` does not check the
/// wire type of a map, and reads a length where a field of another type has its value; of a list it checks the wire type.
pub fn root_without_maps() -> MessageDescriptor {
    let entries =
        "message T { string key = 1; int32 value = 2; } message U { int64 key = 1; Root value = 2; }";
    let lists =
        PROTO.replace("map<string, int32> t", "repeated T t").replace("map<int64, Root> u", "repeated U u");
    compiled(format!("{lists} {entries}"))
}

fn compiled(text: String) -> MessageDescriptor {
    let mut compiler = protox::Compiler::with_file_resolver(One(text));
    compiler.open_file("root.proto").unwrap();
    compiler.descriptor_pool().get_message_by_name("Root").unwrap()
}

pub fn message(rng: &mut Rng, of: &MessageDescriptor, depth: u32) -> DynamicMessage {
    let mut made = DynamicMessage::new(of.clone());
    let word = |rng: &mut Rng| (0..rng.usize(0..5)).map(|_| rng.alphanumeric()).collect::<String>();
    for field in of.fields() {
        let name = field.name().to_owned();
        let is_deep = ["q", "u", "w", "y"].contains(&name.as_str());
        if rng.bool() || is_deep && depth == 0 {
            continue;
        }
        let int = rng.i64(..) >> rng.u32(0..64);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "any number will do")]
        let value = match name.as_str() {
            "a" => Value::F64(rng.f64() * 1e9),
            "b" => Value::F32(rng.f32()),
            "c" | "g" | "k" | "ca" => Value::I32(int as i32),
            "d" | "h" | "l" | "ha" => Value::I64(int),
            "e" | "i" | "ia" => Value::U32(int as u32),
            "f" | "j" | "fa" => Value::U64(int as u64),
            "m" | "ma" => Value::Bool(rng.bool()),
            "n" | "v" | "na" => Value::String(word(rng)),
            "o" | "oa" => Value::Bytes(word(rng).into_bytes().into()),
            "p" | "pa" => Value::EnumNumber([0, 1, -5, 9][rng.usize(0..4)]),
            "q" | "w" => Value::Message(message(rng, of, depth - 1)),
            "r" => Value::List((0..rng.usize(0..4)).map(|_| Value::I64(rng.i64(-100..100))).collect()),
            "s" => Value::List((0..rng.usize(0..3)).map(|_| Value::String(word(rng))).collect()),
            "t" => Value::Map([(MapKey::String("k".into()), Value::I32(int as i32))].into()),
            "u" => {
                let one = (MapKey::I64(5), Value::Message(message(rng, of, depth - 1)));
                Value::Map([one, (MapKey::I64(-1), Value::Message(message(rng, of, 0)))].into())
            }
            "y" => Value::List(
                (0..rng.usize(0..3)).map(|_| Value::Message(message(rng, of, depth - 1))).collect(),
            ),
            _ => Value::List((0..rng.usize(0..3)).map(|_| Value::U32(rng.u32(..))).collect()),
        };
        made.set_field(&field, value);
    }
    made
}

/// The defaults of the fields 26 to 33, which have no presence: some encoders write them.
pub fn written_defaults(rng: &mut Rng) -> Vec<u8> {
    let all: [&[u8]; 8] = [
        &[0xd0, 1, 0],
        &[0xd8, 1, 0],
        &[0xe0, 1, 0],
        &[0xed, 1, 0, 0, 0, 0],
        &[0xf0, 1, 0],
        &[0xfa, 1, 0],
        &[0x82, 2, 0],
        &[0x88, 2, 0],
    ];
    all.into_iter().filter(|_| rng.u8(0..4) == 0).flatten().copied().collect()
}

/// The text at a path of a decoded message.
pub fn expected(message: &DynamicMessage, path: &[&str]) -> Option<String> {
    let (name, mut path) = path.split_first()?;
    let field = message.descriptor().get_field_by_name(name)?;
    if !message.has_field(&field) {
        return None;
    }
    let mut value = message.get_field(&field).into_owned();
    if let Value::List(items) = &value {
        let (index, rest) = path.split_first()?;
        (value, path) = (items.get(index.parse::<usize>().ok()?)?.clone(), rest);
    } else if let Value::Map(entries) = &value {
        let (key, rest) = path.split_first()?;
        let found = entries.iter().find(|(at, _)| match at {
            MapKey::String(text) => text == key,
            MapKey::I64(number) => number.to_string() == *key,
            _ => false,
        });
        (value, path) = (found?.1.clone(), rest);
    }
    let text = match value {
        Value::Message(inner) => return expected(&inner, path),
        _ if !path.is_empty() => return None,
        Value::EnumNumber(0) => "A".to_owned(),
        Value::EnumNumber(1) => "B".to_owned(),
        Value::EnumNumber(-5) => "C".to_owned(),
        Value::Bool(it) => it.to_string(),
        Value::I32(it) | Value::EnumNumber(it) => it.to_string(),
        Value::I64(it) => it.to_string(),
        Value::U32(it) => it.to_string(),
        Value::U64(it) => it.to_string(),
        Value::F32(it) => it.to_string(),
        Value::F64(it) => it.to_string(),
        Value::String(it) => it,
        Value::Bytes(it) => String::from_utf8_lossy(&it).into_owned(),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}
