"""Prints records of the serializers of Confluent (confluent-kafka 2.16.1), aws-glue-schema-registry 1.1.3 and fastavro 1.13.1, one JSON object per
line, and records by the specification where no serializer was found. To be run by generate.sh."""
import io, json, uuid
import fastavro
from aws_schema_registry.codec import encode
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

text = open("order.avsc").read()
schema = fastavro.parse_schema(json.loads(text))
order = {"at": 1, "state": "DONE", "before": None, "hash": b"\1\2", "id": "A-1"}


def record(by, frame, source, file, schema_id, headers, value):
    headers = {name: bytes(header).hex() for name, header in headers}
    print(json.dumps({"by": by, "frame": frame, "source": source, "file": file, "schema": str(schema_id), "headers": headers, "value": value.hex()}))


def confluent(serializer, value, source, file):
    client, conf = SchemaRegistryClient.new_client({"url": "mock://"}), {"schema.id.serializer": header_schema_id_serializer}
    ctx = SerializationContext("order", MessageField.VALUE, [])
    value = serializer(client, conf)(value, ctx)
    guid = client.get_latest_version("order-value").guid
    record("confluent-kafka 2.16.1", "confluent", source, file, guid, ctx.headers, value)


def field(message, name, number):
    message.field.add(name=name, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")


proto = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
zebra = proto.message_type.add(name="Zebra")
entry = zebra.nested_type.add(name="CountsEntry")
entry.options.map_entry = True
field(entry, "key", 1)
entry.field.add(name="value", number=2, type="TYPE_INT32", label="LABEL_OPTIONAL")
zebra.field.add(name="counts", number=1, type="TYPE_MESSAGE", label="LABEL_REPEATED", type_name=".shop.Zebra.CountsEntry")
field(zebra, "id", 2)
field(zebra.nested_type.add(name="Inner"), "id", 1)
field(proto.message_type.add(name="Alpha"), "id", 1)
pool = descriptor_pool.DescriptorPool()
pool.Add(proto)
of = lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

confluent(lambda client, conf: AvroSerializer(client, text, conf=conf), order, "avro:/id", "order.avsc")
for name in ["shop.Zebra", "shop.Alpha"]:
    make = lambda client, conf: ProtobufSerializer(of(name), client, {**conf, "use.deprecated.format": False})
    confluent(make, of(name)(id="A-1"), "protobuf:/id", "order.proto")

plain = io.BytesIO()
fastavro.schemaless_writer(plain, schema, order)
plain = plain.getvalue()
version = uuid.UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
for compression in [None, "ZLIB"]:
    by = "aws-glue-schema-registry 1.1.3"
    record(by, "glue", "avro:/id", "order.avsc", version, [], encode(plain, version, compression))
fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
value = bytes([0xC3, 1]) + bytes.fromhex(fingerprint) + plain
record("fastavro 1.13.1", "single-object", "avro:/id", "order.avsc", bytes.fromhex(fingerprint)[::-1].hex(), [], value)

by = "specification: SchemaId.fromBytes of Confluent"
record(by, "confluent", "avro:/id", "order.avsc", 7, [("__value_schema_id", [0, 0, 0, 0, 7])], plain)
inner, message = b"\0" + (7).to_bytes(4, "big") + b"\4\0\0", of("shop.Zebra.Inner")(id="A-1").SerializeToString()
record(by, "confluent", "protobuf:/id", "order.proto", 7, [("__value_schema_id", inner)], message)
by = "specification: ProtobufKafkaSerializer of apicurio-registry-protobuf-serde-kafka 3, with headers"
headers = [("apicurio.value.contentId", (7).to_bytes(8, "big")), ("apicurio.protobuf.type", b"Alpha")]
message = of("shop.Alpha")(id="A-1").SerializeToString()
record(by, "apicurio", "protobuf:/id", "order.proto", 7, headers, b"\x07\n\5Alpha" + message)
