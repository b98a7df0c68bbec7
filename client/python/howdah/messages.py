"""Conversion between Python values and protocol messages: payloads, durations, times and options."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Mapping, TypeVar, Union

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)
Seconds = Union[int, float, timedelta]


def encode(value: object) -> bytes:
    """Encodes a payload or a result.

    Bytes are unchanged, messages are serialized, None is empty, and any other value becomes JSON.
    """
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Message):
        return value.SerializeToString()
    if hasattr(value, "model_dump_json"):  # pydantic
        return str(value.model_dump_json()).encode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Returns a decoder for payloads of a type.

    The type may be bytes, a protobuf message, a dataclass or a pydantic model. For any other type it decodes JSON.
    """
    if kind is bytes:
        return bytes
    if isinstance(kind, type) and issubclass(kind, Message):
        return kind.FromString
    if hasattr(kind, "model_validate_json"):  # pydantic
        validate: Callable[[bytes], Any] = kind.model_validate_json
        return validate
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return lambda data: kind(**json.loads(data))
    return lambda data: json.loads(data) if data else None


def decode(data: bytes, kind: Any = None) -> Any:
    """Decodes a payload or a result. ``kind`` is a type as in `decoder`; by default, decodes JSON."""
    return decoder(kind)(data)


def duration(value: Seconds) -> Duration:
    message = Duration()
    message.FromTimedelta(value if isinstance(value, timedelta) else timedelta(seconds=value))
    return message


def timestamp(value: datetime) -> Timestamp:
    message = Timestamp()
    # A datetime without a time zone counts as local time, as usual in Python.
    message.FromDatetime(value.astimezone(timezone.utc))
    return message


_CONVERT: Dict[str, Callable[[Any], Message]] = {
    "google.protobuf.Duration": duration,
    "google.protobuf.Timestamp": timestamp,
}


def fill(message: M, values: Mapping[str, Any]) -> M:
    """Sets fields of a message from Python values, including durations, times, names of enum values and mappings."""
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise TypeError(f"{message.DESCRIPTOR.name} has no option {name!r}")
        if value is None:
            continue
        kind, enum = field.message_type, field.enum_type
        if enum is not None and isinstance(value, str):
            prefix = enum.values[0].name[: -len("UNSPECIFIED")]
            names: List[str] = [option.name for option in enum.values]
            if prefix + value.upper() not in names:
                known = ", ".join(option[len(prefix) :].lower() for option in names[1:])
                raise ValueError(f"{name} is {value!r}; it may be {known}")
            value = enum.values_by_name[prefix + value.upper()].number
        convert = _CONVERT.get(kind.full_name) if kind is not None else None
        if isinstance(value, (list, tuple)):
            getattr(message, name).extend(map(convert, value) if convert else value)
        elif kind is None:
            setattr(message, name, value)
        elif convert is not None and not isinstance(value, Message):
            getattr(message, name).CopyFrom(convert(value))
        elif isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        elif kind.GetOptions().map_entry:
            getattr(message, name).update(value)
        else:
            fill(getattr(message, name), value)
    return message
