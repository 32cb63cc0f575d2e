// Prints records of the serializers of Apicurio (2.6.13), AWS Glue (1.1.25) and Avro (1.12.0), one JSON object per line. To be run
// by generate.sh.
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
import java.util.*;
import org.apache.avro.Schema;
import org.apache.avro.generic.*;
import org.apache.avro.message.BinaryMessageEncoder;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serializer;
import com.amazonaws.services.schemaregistry.common.configs.GlueSchemaRegistryConfiguration;
import com.amazonaws.services.schemaregistry.serializers.SerializationDataEncoder;
import com.amazonaws.services.schemaregistry.serializers.protobuf.*;
import com.google.protobuf.*;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;

public class Frames {
    static String registry;

    static void print(String by, String frame, String source, String file, String id, Iterable<org.apache.kafka.common.header.Header> headers, byte[] value) {
        StringBuilder named = new StringBuilder();
        for (var header : headers) {
            if (named.length() > 0) named.append(", ");
            named.append("\"" + header.key() + "\": \"" + HexFormat.of().formatHex(header.value()) + "\"");
        }
        System.out.println("{\"by\": \"" + by + "\", \"frame\": \"" + frame + "\", \"source\": \"" + source + "\", \"file\": \"" + file
            + "\", \"schema\": \"" + id + "\", \"headers\": {" + named + "}, \"value\": \"" + HexFormat.of().formatHex(value) + "\"}");
    }

    static String id(String topic, String name) throws Exception {
        var uri = URI.create(registry + "/groups/default/artifacts/" + topic + "-value/meta");
        String meta = HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString()).body();
        return meta.replaceAll(".*\"" + name + "\":(\\d+).*", "$1");
    }

    static <T> void apicurio(Serializer<T> serializer, T value, String topic, boolean inHeaders, String use, String source, String file) throws Exception {
        serializer.configure(Map.of("apicurio.registry.url", registry, "apicurio.registry.auto-register", true,
            "apicurio.registry.headers.enabled", inHeaders, "apicurio.registry.use-id", use), false);
        var headers = new RecordHeaders();
        byte[] bytes = serializer.serialize(topic, headers, value);
        String frame = use.equals("globalId") ? "apicurio" : "apicurio-content";
        print("apicurio-registry-serdes 2.6.13", frame, source, file, id(topic, use), headers, bytes);
    }

    static DynamicMessage message(Descriptors.Descriptor of) {
        return DynamicMessage.newBuilder(of).setField(of.findFieldByName("id"), "A-1").build();
    }

    public static void main(String[] args) throws Exception {
        registry = args[0];
        Schema schema = new Schema.Parser().parse(Files.readString(Path.of("order.avsc")));
        GenericRecord order = new GenericRecordBuilder(schema).set("at", 1L)
            .set("state", new GenericData.EnumSymbol(schema.getField("state").schema(), "DONE"))
            .set("hash", new GenericData.Fixed(schema.getField("hash").schema(), new byte[] {1, 2})).set("id", "A-1").build();
        var entry = DescriptorProtos.DescriptorProto.newBuilder().setName("CountsEntry")
            .setOptions(DescriptorProtos.MessageOptions.newBuilder().setMapEntry(true))
            .addField(field("key", 1, DescriptorProtos.FieldDescriptorProto.Type.TYPE_STRING))
            .addField(field("value", 2, DescriptorProtos.FieldDescriptorProto.Type.TYPE_INT32));
        var inner = DescriptorProtos.DescriptorProto.newBuilder().setName("Inner").addField(field("id", 1, DescriptorProtos.FieldDescriptorProto.Type.TYPE_STRING));
        var counts = field("counts", 1, DescriptorProtos.FieldDescriptorProto.Type.TYPE_MESSAGE)
            .setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_REPEATED).setTypeName(".shop.Zebra.CountsEntry");
        var zebra = DescriptorProtos.DescriptorProto.newBuilder().setName("Zebra").addField(counts).addNestedType(entry).addNestedType(inner)
            .addField(field("id", 2, DescriptorProtos.FieldDescriptorProto.Type.TYPE_STRING));
        var alpha = DescriptorProtos.DescriptorProto.newBuilder().setName("Alpha").addField(field("id", 1, DescriptorProtos.FieldDescriptorProto.Type.TYPE_STRING));
        var file = Descriptors.FileDescriptor.buildFrom(DescriptorProtos.FileDescriptorProto.newBuilder().setName("order.proto").setPackage("shop")
            .setSyntax("proto3").addMessageType(zebra).addMessageType(alpha).build(), new Descriptors.FileDescriptor[0]);
        DynamicMessage top = message(file.findMessageTypeByName("Zebra"));
        DynamicMessage nested = message(file.findMessageTypeByName("Zebra").findNestedTypeByName("Inner"));

        var encoded = new BinaryMessageEncoder<GenericRecord>(GenericData.get(), schema).encode(order).array();
        byte[] plain = Arrays.copyOfRange(encoded, 10, encoded.length);
        String fingerprint = String.format("%016x", org.apache.avro.SchemaNormalization.parsingFingerprint64(schema));
        print("avro 1.12.0", "single-object", "avro:/id", "order.avsc", fingerprint, List.of(), encoded);
        UUID uuid = UUID.fromString("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63");
        for (String compression : List.of("NONE", "ZLIB")) {
            var encoder = new SerializationDataEncoder(new GlueSchemaRegistryConfiguration(Map.of("region", "eu-west-1", "compression", compression)));
            String by = "schema-registry-serde 1.1.25, compression " + compression;
            print(by, "glue", "avro:/id", "order.avsc", uuid.toString(), List.of(), encoder.write(plain, uuid));
            print(by, "glue", "json:/id", "order.avsc", uuid.toString(), List.of(), encoder.write("{\"id\":\"A-1\"}".getBytes(), uuid));
            for (DynamicMessage of : List.of(top, nested)) {
                byte[] bytes = new ProtobufWireFormatEncoder(new MessageIndexFinder()).encode(of, file);
                print(by, "glue", "protobuf:/id", "order.proto", uuid.toString(), List.of(), encoder.write(bytes, uuid));
            }
        }
        for (String use : List.of("globalId", "contentId")) {
            for (boolean inHeaders : new boolean[] {false, true}) {
                apicurio(new AvroKafkaSerializer<GenericRecord>(), order, "avro", inHeaders, use, "avro:/id", "order.avsc");
                apicurio(new ProtobufKafkaSerializer<DynamicMessage>(), top, "proto", inHeaders, use, "protobuf:/id", "order.proto");
            }
        }
    }

    static DescriptorProtos.FieldDescriptorProto.Builder field(String name, int number, DescriptorProtos.FieldDescriptorProto.Type type) {
        return DescriptorProtos.FieldDescriptorProto.newBuilder().setName(name).setNumber(number).setType(type)
            .setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_OPTIONAL);
    }
}
