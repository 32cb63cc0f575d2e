//! Protobuf schemas: text of `.proto` files, or descriptors.

use std::collections::HashMap;
use std::path::Path;

use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};
use protox::prost_reflect::{DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};

use super::nesting::is_too_deep;
use crate::dedupe::{ProtoField, ProtoKind, ProtoMessage, ProtoSchema, Repeated};

/// The name of the schema itself among the files.
const ROOT: &str = "dedupd/schema.proto";

/// Files by the name under which they are imported.
struct Texts(HashMap<String, String>);

impl FileResolver for Texts {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let text = self.0.get(name).ok_or_else(|| protox::Error::file_not_found(name))?;
        if is_too_deep(text) {
            return Err(protox::Error::new(format!("{name}: brackets are nested too deeply")));
        }
        File::from_source(name, text)
    }
}

/// The schema with this text, which imports the references by their names.
pub fn of_texts(text: &str, references: &[(String, String)]) -> Result<ProtoSchema, String> {
    let own = [(ROOT.to_owned(), text.to_owned())];
    compile(Texts(references.iter().cloned().chain(own).collect()), ROOT)
}

/// The schema in this file, which imports others from its directory.
pub fn of_file(path: &Path) -> Result<ProtoSchema, String> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("the file has no name")?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    compile(IncludeFileResolver::new(directory.to_owned()), name)
}

/// The last file of a descriptor set.
pub fn of_descriptors(bytes: &[u8]) -> Result<ProtoSchema, String> {
    let pool = DescriptorPool::decode(bytes).map_err(|error| format!("is no descriptor set: {error}"))?;
    let last = pool.files().last().ok_or("is a descriptor set without files")?;
    Ok(schema(&pool, &last))
}

fn compile(files: impl FileResolver + 'static, root: &str) -> Result<ProtoSchema, String> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(files);
    resolver.add(GoogleFileResolver::new());
    let invalid = |error: protox::Error| format!("cannot be compiled: {error}");
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).open_file(root).map_err(invalid)?;
    let pool = compiler.descriptor_pool();
    let file = pool.get_file_by_name(root).ok_or("cannot be compiled")?;
    Ok(schema(&pool, &file))
}

fn schema(pool: &DescriptorPool, file: &FileDescriptor) -> ProtoSchema {
    let all: Vec<MessageDescriptor> = pool.all_messages().collect();
    let places: HashMap<String, usize> =
        all.iter().enumerate().map(|(place, message)| (message.full_name().to_owned(), place)).collect();
    let place = |message: &MessageDescriptor| places.get(message.full_name()).copied().unwrap_or(usize::MAX);
    let messages = all.iter().map(|message| {
        // The serializers of registries count the messages as written: an entry of a map is not.
        let nested = message.child_messages().filter(|child| !child.is_map_entry());
        let fields = message.fields().filter(|field| !field.is_group());
        ProtoMessage {
            name: message.full_name().to_owned(),
            fields: fields.map(|it| field(message, &it, &place)).collect(),
            nested: nested.map(|child| place(&child)).collect(),
        }
    });
    let mut own: Vec<&MessageDescriptor> = all.iter().filter(|it| it.parent_file() == *file).collect();
    own.sort_by_key(|message| message.full_name());
    ProtoSchema {
        messages: messages.collect(),
        roots: file.messages().map(|it| place(&it)).collect(),
        sorted: own.into_iter().map(place).collect(),
    }
}

fn field(
    message: &MessageDescriptor,
    of: &FieldDescriptor,
    place: &impl Fn(&MessageDescriptor) -> usize,
) -> ProtoField {
    let oneof = of.containing_oneof();
    ProtoField {
        name: of.name().to_owned(),
        number: of.number(),
        kind: kind(&of.kind(), place),
        repeated: if of.is_map() {
            Repeated::Map
        } else if of.is_list() {
            Repeated::List
        } else {
            Repeated::No
        },
        oneof: oneof.and_then(|oneof| message.oneofs().position(|it| it.name() == oneof.name())),
        has_presence: of.supports_presence(),
    }
}

fn kind(of: &Kind, place: &impl Fn(&MessageDescriptor) -> usize) -> ProtoKind {
    match of {
        Kind::Double => ProtoKind::Double,
        Kind::Float => ProtoKind::Float,
        Kind::Int32 => ProtoKind::Int32,
        Kind::Int64 => ProtoKind::Int64,
        Kind::Uint32 => ProtoKind::Uint32,
        Kind::Uint64 => ProtoKind::Uint64,
        Kind::Sint32 => ProtoKind::Sint32,
        Kind::Sint64 => ProtoKind::Sint64,
        Kind::Fixed32 => ProtoKind::Fixed32,
        Kind::Fixed64 => ProtoKind::Fixed64,
        Kind::Sfixed32 => ProtoKind::Sfixed32,
        Kind::Sfixed64 => ProtoKind::Sfixed64,
        Kind::Bool => ProtoKind::Bool,
        Kind::String => ProtoKind::Text,
        Kind::Bytes => ProtoKind::Bytes,
        Kind::Message(message) => ProtoKind::Message(place(message)),
        Kind::Enum(names) => {
            ProtoKind::Enum(names.values().map(|it| (it.number(), it.name().to_owned())).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Naming;

    fn find(schema: &ProtoSchema, document: &[u8], path: &[&str]) -> Option<String> {
        let path: Vec<String> = path.iter().map(|token| (*token).to_owned()).collect();
        schema.find(document, &path).map(|found| String::from_utf8_lossy(&found).into_owned())
    }

    #[test]
    fn a_schema_with_references_is_compiled() {
        let order = r#"syntax = "proto3";
            package shop;
            import "line.proto";
            import "google/protobuf/timestamp.proto";
            message Order {
                map<string, Line> lines = 1;
                oneof by { string id = 2; int64 number = 3; }
                google.protobuf.Timestamp at = 4;
                Inner inner = 5;
                enum State { NEW = 0; DONE = 1; }
                State state = 6;
                message Inner { repeated fixed32 codes = 1; }
            }"#;
        let line = "syntax = \"proto3\"; package shop; message Line { string sku = 1; }";
        let schema = of_texts(order, &[("line.proto".to_owned(), line.to_owned())]).unwrap();
        let document = [
            &[0x0a, 8, 0x0a, 1, b'a', 0x12, 3, 0x0a, 1, b's'][..],
            &[0x12, 1, b'x', 0x22, 2, 0x08, 7, 0x2a, 6, 0x0a, 4, 9, 0, 0, 0, 0x30, 1],
        ]
        .concat();
        assert_eq!(find(&schema, &document, &["lines", "a", "sku"]).as_deref(), Some("s"));
        assert_eq!(find(&schema, &document, &["id"]).as_deref(), Some("x"));
        assert_eq!(find(&schema, &document, &["at", "seconds"]).as_deref(), Some("7"));
        assert_eq!(find(&schema, &document, &["inner", "codes", "0"]).as_deref(), Some("9"));
        assert_eq!(find(&schema, &document, &["state"]).as_deref(), Some("DONE"));
        assert_eq!(find(&schema, &document, &[]).as_deref(), Some("shop.Order"));
        assert_eq!(
            schema.find_named(Naming::Indexes, &[4, 0, 0], &[]).as_deref(),
            Some(&b"shop.Order.Inner"[..])
        );
        let nested = [&[4, 0, 0][..], &[0x0a, 4, 9, 0, 0, 0]].concat();
        let path = ["codes".to_owned(), "0".to_owned()];
        assert_eq!(
            schema.find_named(Naming::Indexes, &nested, &path).as_deref(),
            Some(&b"9"[..]),
            "maps have no index"
        );
        let error = of_texts(order, &[]).unwrap_err();
        assert!(error.contains("line.proto"), "{error}");
    }
}
