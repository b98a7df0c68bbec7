"""Conversion between Python values and protocol messages: payloads, durations, times and options."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import reprlib
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, Iterable, Mapping, TypeVar, Union, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
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
# Messages that select jobs. A condition without a value would select more jobs than the caller means.
_SELECTIONS = {"BulkSpec", "JobConditions", "JobFilter", "SearchJobsRequest"}
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_OTHERS = {
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_STRING: "text in UTF-8 (str)",
}
# The longest duration of the protocol, about 10,000 years.
_LONGEST = timedelta(seconds=315_576_000_000)


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
        return _dataclass_decoder(kind)
    return lambda data: json.loads(data) if data else None


def _dataclass_decoder(kind: Callable[..., Any]) -> Callable[[bytes], Any]:
    """Returns a decoder that ignores unknown fields, so that a producer may be newer than a worker."""
    parameters = inspect.signature(kind).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def build(data: bytes) -> Any:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError(f"{_shown(fields)} is not a JSON object")
        return kind(**{name: value for name, value in fields.items() if takes_all or name in parameters})

    return build


def decode(data: bytes, kind: Any = None) -> Any:
    """Decodes a payload or a result. ``kind`` is a type as in `decoder`; by default, decodes JSON."""
    return decoder(kind)(data)


def span(value: Seconds, name: str = "") -> timedelta:
    """Converts a duration. Raises `ValueError`, with the name of the option, for any other value."""
    try:
        if isinstance(value, str):
            found = _parsed(value)
        else:
            found = value if isinstance(value, timedelta) else timedelta(seconds=value)
        if abs(found) > _LONGEST:
            raise ValueError(value)
        return found
    except (TypeError, ValueError, OverflowError):
        hint = "write seconds, a timedelta, or a text such as '250ms', '5m', '1h30m' or '3 days'"
        raise ValueError(f"{name}{': ' if name else ''}{value!r} is not a duration: {hint}") from None


def seconds(value: Seconds, name: str = "") -> float:
    return span(value, name).total_seconds()


def _parsed(text: str) -> timedelta:
    total, end = timedelta(), 0
    while end < len(text) or not text:
        part = _PART.match(text, end)
        units = [unit for names, unit in _UNITS.items() if part and re.fullmatch(names, part[2])]
        if part is None or not units:
            raise ValueError(text)
        total, end = total + float(part[1]) * units[0], part.end()
    return total


def duration(value: Seconds, name: str = "") -> Duration:
    message = Duration()
    message.FromTimedelta(span(value, name))
    return message


def timestamp(value: datetime, name: str = "") -> Timestamp:
    """Converts a time. Raises `ValueError`, with the name of the option, for any other value."""
    message = Timestamp()
    try:
        # A datetime without a time zone counts as local time, as usual in Python.
        message.FromDatetime(value.astimezone(timezone.utc))
    except (AttributeError, TypeError, ValueError, OverflowError):
        hint = "write one such as datetime.now(timezone.utc) + timedelta(days=1)"
        raise ValueError(f"{name}: {value!r} is not a datetime: {hint}") from None
    return message


_CONVERT: Dict[str, Callable[[Any, str], Message]] = {
    "google.protobuf.Duration": duration,
    "google.protobuf.Timestamp": timestamp,
}


def check_names(options: Iterable[str], known: Iterable[str], role: str) -> None:
    """Raises `TypeError` for an unknown option."""
    for name in options:
        if name not in known:
            raise TypeError(f"{role} has no option {name!r}")


def fill(message: M, values: Mapping[str, Any]) -> M:
    """Sets fields of a message from Python values, including durations, times, names of enum values and mappings.

    None leaves a field unset. A message that selects jobs must have no None and no empty value. An error names the field
    and the value, and what to write instead. It is a `TypeError` for a value of another type or an unknown name, and a
    `ValueError` for any other value.
    """
    _fill(message, values, "")
    return message


def _fill(message: Message, values: Mapping[str, Any], prefix: str) -> None:
    fields, kind = message.DESCRIPTOR.fields_by_name, message.DESCRIPTOR.name
    check_names(values, fields, kind)
    chosen: Dict[str, str] = {}
    for name, value in values.items():
        field, path = fields[name], prefix + name
        if kind in _SELECTIONS and _is_blank(field, value):
            raise ValueError(f"{path} is {'None' if value is None else 'empty'}: leave the condition out")
        if value is None:
            continue
        oneof = field.containing_oneof
        other = path if oneof is None else chosen.setdefault(oneof.name, path)
        if other != path:
            raise ValueError(f"{other} and {path} contradict each other: give one")
        _set(message, field, value, path)
    if kind == "RetryPolicy" and values.get("delays") and values.get("kind") is None:
        _set(message, fields["kind"], "list", f"{prefix}kind")


def _is_blank(field: Any, value: Any) -> bool:
    """Whether a value selects the same jobs as no value."""
    return value is None or (hasattr(value, "__len__") and not len(value)) or (bool(field.enum_type) and value == 0)


def _set(message: Message, field: Any, value: Any, path: str) -> None:
    held, kind = getattr(message, field.name), field.message_type
    if hasattr(held, "extend"):
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise TypeError(f"{path}: {_shown(value)} is not a list: write [{_shown(value)}]")
        for number, each in enumerate(value):
            _put(held.append, field, each, f"{path}[{number}]")
    elif kind is None:
        _put(lambda converted: setattr(message, field.name, converted), field, value, path)
    elif not kind.GetOptions().map_entry:
        _put(held.CopyFrom, field, value, path)
    elif isinstance(value, Mapping):
        for item in value.items():
            entry = cast(Any, GetMessageClass(kind)())
            for part, each in zip(("key", "value"), item):
                _set(entry, kind.fields_by_name[part], each, f"{path}[{item[0]!r}]")
            held[entry.key] = entry.value
    else:
        raise TypeError(f"{path}: {_shown(value)} is not a dict")


def _put(put: Callable[[Any], object], field: Any, value: Any, path: str) -> None:
    """Converts a value, and puts it into a field. Protobuf checks type and range."""
    converted = _converted(field, value, path)
    try:
        put(converted)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {_shown(value)} is not {_expected(field)}") from None


def _converted(field: Any, value: Any, path: str) -> Any:
    kind = field.message_type
    if field.enum_type is not None and isinstance(value, str):
        number = _words(field.enum_type).get(value.lower().replace("-", "_"))
        if number is None:
            raise ValueError(f"{path}: {_shown(value)} is not {_expected(field)}")
        return number
    if kind is None or (isinstance(value, Message) and value.DESCRIPTOR.full_name == kind.full_name):
        return value
    if kind.full_name in _CONVERT:
        return _CONVERT[kind.full_name](value, path)
    if not isinstance(value, Mapping):
        return value
    message = GetMessageClass(kind)()
    _fill(message, value, f"{path}.")
    return message


def _words(enum: Any) -> Dict[str, int]:
    """Returns the values of an enum by name, such as ``one_waiting``, without the unspecified one."""
    unspecified, *others = enum.values
    start = len(unspecified.name) - len("UNSPECIFIED")
    return {value.name[start:].lower(): value.number for value in others}


def _expected(field: Any) -> str:
    """Describes the values of a field, for errors."""
    from .options import BOUNDS  # Imported late, because that module imports this one.

    if field.cpp_type in _INTEGERS:
        bounds = {name: (least, most) for name, kind, least, most, _ in BOUNDS if kind == "number"}
        least, most = bounds.get(field.name, _INTEGERS[field.cpp_type])
        return f"a whole number from {least} to {most}"
    if field.enum_type is not None:
        return f"one of {', '.join(_words(field.enum_type))}"
    if field.message_type is not None:
        return f"a dict of the fields of {field.message_type.name}"
    return _OTHERS[field.cpp_type] if field.type != field.TYPE_BYTES else "bytes"


def _shown(value: object) -> str:
    return reprlib.repr(value)
