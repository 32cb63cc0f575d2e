"""Writes cloudevents.jsonl with the CloudEvents SDK for Python: pip install cloudevents==2.2.0; python3 record_cloudevents.py >cloudevents.jsonl"""

import json
from datetime import datetime, timezone

from cloudevents.core.bindings.kafka import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

TIME = datetime(2026, 11, 30, 10, tzinfo=timezone.utc)

print("# CloudEvents in both modes, by record_cloudevents.py.")
for write, identifier, source, order in [
    (to_binary, "A234-1", "/shop/de", 1),
    (to_structured, "A234-1", "/shop/de", 1),
    (to_structured, "A234-2", "/shop/de", 2),
    (to_binary, "A234-2", "/shop/de", 2),
    (to_binary, "A234-1", "/shop/fr", 7),
]:
    attributes = {"id": identifier, "source": source, "specversion": "1.0", "type": "com.example.order.paid", "time": TIME, "datacontenttype": "application/json"}
    message = write(CloudEvent(attributes, {"order": order}), JSONFormat(), lambda event: None)
    headers = [[name, value.decode()] for name, value in message.headers.items()]
    record = {"topic": "cloudevents", "partition": 0, "timestamp": int(TIME.timestamp() * 1000), "key": message.key, "headers": headers}
    print(json.dumps(record | {"value": message.value.decode()}))
