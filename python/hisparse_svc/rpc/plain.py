"""A message as plain JSON data: the proto's own field names, every integer a number.

protobuf's own JSON writes 64-bit integers as text; scripts that read `total` and `free` want numbers.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

if TYPE_CHECKING:
    from google.protobuf.message import Message


def to_plain(message: Message) -> dict[str, Any]:
    """Give every field of a message; a message or optional field that is absent is `None`.

    Enums are their names, times RFC 3339 in UTC, durations seconds as a number, bytes base64.
    """
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    return {field.name: _field(message, field) for field in fields if _shown(message, field)}


def _shown(message: Message, field: Any) -> bool:
    """Tell whether a field has a place: of a oneof only the member that is set has one."""
    oneof = field.containing_oneof
    return oneof is None or oneof.name == f"_{field.name}" or message.HasField(field.name)  # the middle: `optional`


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {key: _value(kind, value[key]) for key in sorted(value)}
    if not isinstance(value, (str, bytes)) and hasattr(value, "__len__"):
        return [_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Duration):
        return value.seconds + value.nanos / 1e9
    if field.message_type is not None:
        return to_plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
