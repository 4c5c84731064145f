"""Column types that hold the same value on SQLite and on PostgreSQL."""

import re
import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

# PostgreSQL takes neither NUL nor lone surrogates in text, and candidates print both. U+2400 is the escape
# character because it is how a NUL is drawn; any text without these three is stored as it is.
_ESCAPE = "\u2400"
_UNSAFE = re.compile("[\x00\u2400\ud800-\udfff]")
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")


def escape(text: str) -> str:
    """Write each NUL, lone surrogate and U+2400 of `text` as U+2400 and four hex digits."""
    return _UNSAFE.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", text)


def unescape(text: str) -> str:
    """Undo `escape`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def parse_utc(text: str) -> datetime:
    """Read an ISO 8601 time; one that names no zone is UTC.

    Raises:
        ValueError: it is no such time.
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class SafeText(TypeDecorator[str]):
    """Any Python string, NUL and lone surrogates included."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape on the way in."""
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Unescape on the way out."""
        return None if value is None else unescape(value)


class SafeJson(TypeDecorator[Any]):
    """A JSON document, as JSONB on PostgreSQL; its strings are escaped like `SafeText`."""

    impl = JSON
    cache_ok = True

    def __init__(self) -> None:
        """Make None an SQL NULL, not the JSON document `null`."""
        super().__init__(none_as_null=True)

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """Choose JSONB where there is one."""
        kind = JSONB if dialect.name == "postgresql" else JSON
        return dialect.type_descriptor(kind(none_as_null=True))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Escape on the way in."""
        return _each_string(value, escape)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Unescape on the way out."""
        return _each_string(value, unescape)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, always aware; SQLite itself drops the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; a time without a zone is a bug."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} names no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class PackedInts(TypeDecorator[tuple[int, ...]]):
    """Token ids as little-endian 32-bit integers: `numpy.frombuffer(blob, "<i4")`."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Iterable[int] | None, dialect: Dialect) -> bytes | None:
        """Pack; an id that does not fit is an error."""
        return _pack("i", value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[int, ...] | None:
        """Unpack."""
        return _unpack("i", value)


class PackedFloats(TypeDecorator[tuple[float, ...]]):
    """Log-probabilities as little-endian doubles: `numpy.frombuffer(blob, "<f8")`."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Iterable[float] | None, dialect: Dialect) -> bytes | None:
        """Pack, without loss."""
        return _pack("d", value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[float, ...] | None:
        """Unpack."""
        return _unpack("d", value)


def _each_string(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _each_string(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_string(item, change) for item in value]
    return value


def _pack(code: str, values: Iterable[float] | None) -> bytes | None:
    if values is None:
        return None
    items = tuple(values)
    return struct.pack(f"<{len(items)}{code}", *items)


def _unpack(code: str, blob: bytes | None) -> tuple[Any, ...] | None:
    if blob is None:
        return None
    return struct.unpack(f"<{len(blob) // struct.calcsize('<' + code)}{code}", blob)
