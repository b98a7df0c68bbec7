"""Conversion between Python values and protocol messages: payloads, durations, times and options."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar, Union

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)
#: A duration: seconds, a `timedelta`, or a text such as ``250ms``, ``5m``, ``1h30m`` or ``3 days``.
Seconds = Union[int, float, timedelta, str]
_UNITS = {
    "ms|milliseconds?": timedelta(milliseconds=1),
    "s|secs?|seconds?": timedelta(seconds=1),
    "m|mins?|minutes?": timedelta(minutes=1),
    "h|hrs?|hours?": timedelta(hours=1),
    "d|days?": timedelta(days=1),
    "w|weeks?": timedelta(weeks=1),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def encode(value: object) -> bytes:
    """Encodes a payload or a result.

    Bytes are unchanged, messages are serialized, None is empty, and any other value becomes JSON. NaN and infinities raise
    `ValueError`, because JSON does not have them.
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
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


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


def span(value: Seconds) -> timedelta:
    """Converts a duration. Raises `ValueError` for any other value."""
    try:
        if isinstance(value, str):
            return _parsed(value)
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        hint = "write seconds, a timedelta, or a text such as '250ms', '5m', '1h30m' or '3 days'"
        raise ValueError(f"{value!r} is not a duration: {hint}") from None


def seconds(value: Seconds) -> float:
    return span(value).total_seconds()


def _parsed(text: str) -> timedelta:
    total, end = timedelta(), 0
    while end < len(text) or not text:
        part = _PART.match(text, end)
        units = [unit for names, unit in _UNITS.items() if part and re.fullmatch(names, part[2])]
        if part is None or not units:
            raise ValueError(text)
        total, end = total + float(part[1]) * units[0], part.end()
    return total


def duration(value: Seconds) -> Duration:
    message = Duration()
    message.FromTimedelta(span(value))
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


def _converter(name: str, kind: str) -> Optional[Callable[[Any], Message]]:
    """Returns the conversion to a message type, if there is one. Its errors name the field."""
    convert = _CONVERT.get(kind)

    def converted(value: Any) -> Message:
        assert convert is not None
        try:
            return convert(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    return None if convert is None else converted


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
        convert = _converter(name, kind.full_name) if kind is not None else None
        try:
            _set(message, name, value, convert)
        except (TypeError, AttributeError) as error:
            raise TypeError(f"{name}: {error}") from None
    return message


def _set(message: Message, name: str, value: Any, convert: Optional[Callable[[Any], Message]]) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    if isinstance(value, (list, tuple)):
        getattr(message, name).extend(map(convert, value) if convert else value)
    elif field.message_type is None:
        setattr(message, name, value)
    elif convert is not None and not isinstance(value, Message):
        getattr(message, name).CopyFrom(convert(value))
    elif isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    elif field.message_type.GetOptions().map_entry:
        getattr(message, name).update(value)
    else:
        fill(getattr(message, name), value)
