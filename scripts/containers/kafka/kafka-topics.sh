#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@"
