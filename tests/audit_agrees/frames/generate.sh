#!/bin/sh
# Writes records.jsonl: records of the serializers of Confluent, AWS Glue, Apicurio and Avro. Needs Java 17, Maven, Python 3, and an empty
# Apicurio Registry 2.6.13 (scripts/setup integration installs one), whose URL is the argument, as in http://127.0.0.1:8080/apis/registry/v2.
set -eu
registry=${1:?give the URL of Apicurio Registry}
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mvn -q -B dependency:build-classpath "-Dmdep.outputFile=$work/classpath"
python3 -m venv "$work/python"
"$work/python/bin/pip" install -q 'confluent-kafka[avro,protobuf]==2.16.1' fastavro==1.13.1 aws-glue-schema-registry==1.1.3
java -cp "$(cat "$work/classpath")" Frames.java "$registry" > "$work/records"
"$work/python/bin/python" confluent.py >> "$work/records"
mv "$work/records" records.jsonl
