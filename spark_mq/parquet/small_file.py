"""Encode small Parquet files much faster than pyarrow.

pyarrow sets up a writer for each file and each column. For a few rows that is nearly all of its
time. These files use the simplest form of the format, which every engine reads. They
have one row group, one uncompressed PLAIN page with a checksum for each column, and no statistics.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"spark_mq"
_FOOTER_END: Final = b"\x28" + bytes((len(_CREATED_BY),)) + _CREATED_BY + b"\x00"
_PAGE_START: Final = b"\x15\x00\x15"
_BOOLEAN, _INT32, _INT64, _BYTES = 0, 1, 2, 6  # physical types
_STRUCT: Final = 12  # in a list, by Thrift
# Thrift structs: the fields of a schema element that name the logical type.
_STRING: Final = b"\x25\x00\x4c\x1c\x00\x00"  # UTF8, STRING
_INSTANT: Final = b"\x25\x14\x4c\x8c\x11\x1c\x2c\x00\x00\x00\x00"  # TIMESTAMP_MICROS, in UTC
# The physical type, and the fields that name the logical one.
_KINDS: Final[dict[pa.DataType, tuple[int, bytes]]] = {
    pa.bool_(): (_BOOLEAN, b""),
    pa.int32(): (_INT32, b""),
    pa.int64(): (_INT64, b""),
    pa.timestamp("us", tz="UTC"): (_INT64, _INSTANT),
    pa.string(): (_BYTES, _STRING),
}


class SmallFileEncoder:
    """Encode rows of one schema, whose nullable columns have the types in _KINDS."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = [(_KINDS[field.type][0], _column_start(field)) for field in schema]
        self._start = b"\x15\x02\x19" + _list_head(len(schema) + 1, _STRUCT) + _root(len(schema))
        self._start += b"".join(_element(field) for field in schema)

    def encode(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the file with these columns of at least one row. Instants are integers."""
        rows = len(columns[0])
        levels = {False: _levels(rows, 0), True: _levels(rows, 1)}
        page_tail = _page_tail(rows)
        parts, chunks, at = [_MAGIC], [], len(_MAGIC)
        count = b"\x16" + _varint(rows)
        for values, (kind, start) in zip(columns, self._columns, strict=True):
            present = [value for value in values if value is not None]
            mixed = 0 < len(present) < rows
            data = _mixed_levels(values) if mixed else levels[bool(present)]
            if present:
                data += _plain(kind, present)
            size = _varint(len(data))
            page = _PAGE_START + size + b"\x15" + size + _checksum(data) + page_tail
            total, offset = b"\x16" + _varint(len(page) + len(data)), _varint(at)
            # Encoded as thrift does, with file_offset before the column's metadata.
            chunks.append(
                b"\x26" + offset + start + count + total + total + b"\x26" + offset + b"\x00\x00"
            )
            parts += (page, data)
            at += len(page) + len(data)
        size = b"\x16" + _varint(at - len(_MAGIC))
        footer = (
            self._start + count + b"\x19\x1c\x19" + _list_head(len(chunks), _STRUCT)
            + b"".join(chunks) + size + count + b"\x00" + _FOOTER_END
        )  # fmt: skip
        return b"".join((*parts, footer, struct.pack("<i", len(footer)), _MAGIC))


def _root(columns: int) -> bytes:
    return b"\x48" + _text(b"schema") + b"\x15" + _varint(columns) + b"\x00"


def _element(field: pa.Field) -> bytes:
    kind, logical = _KINDS[field.type]
    return (
        b"\x15" + _varint(kind) + b"\x25\x02\x18" + _text(field.name.encode()) + logical + b"\x00"
    )


def _column_start(field: pa.Field) -> bytes:
    """Return the constant part of a column's metadata: PLAIN values, RLE levels, uncompressed."""
    kind, name = _varint(_KINDS[field.type][0]), _text(field.name.encode())
    return b"\x1c\x15" + kind + b"\x19\x25\x00\x06\x19\x18" + name + b"\x15\x00"


def _text(content: bytes) -> bytes:
    return _unsigned(len(content)) + content


def _list_head(count: int, kind: int) -> bytes:
    return bytes((count << 4 | kind,)) if count < 15 else bytes((0xF0 | kind,)) + _unsigned(count)


def _levels(rows: int, level: int) -> bytes:
    """Return the definition levels of a column whose rows are all null (0) or all set (1)."""
    run = _unsigned(rows << 1) + bytes((level,))
    return struct.pack("<i", len(run)) + run


def _mixed_levels(values: Sequence[Any]) -> bytes:
    """Return the definition levels of a column with some nulls, as bits."""
    groups = (len(values) + 7) // 8
    digits = ["0" if value is None else "1" for value in reversed(values)]
    bits = int("".join(digits), 2)
    run = _unsigned(groups << 1 | 1) + bits.to_bytes(groups, "little")
    return struct.pack("<i", len(run)) + run


def _plain(kind: int, values: Sequence[Any]) -> bytes:
    if kind == _INT64:
        return struct.pack(f"<{len(values)}q", *values)
    if kind == _INT32:
        return struct.pack(f"<{len(values)}i", *values)
    if kind == _BYTES:
        texts = {value: value.encode() for value in set(values)}  # most values repeat
        parts = {value: struct.pack("<i", len(text)) + text for value, text in texts.items()}
        return b"".join([parts[value] for value in values])
    bits = sum(1 << at for at, value in enumerate(values) if value)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _checksum(content: bytes) -> bytes:
    """Return the field of a page header with the page's CRC, always of _CHECKSUM_BYTES."""
    crc = zlib.crc32(content)
    n = (crc << 1 ^ -(crc >> 31)) & 0xFFFFFFFF  # zigzag of a signed number
    more = (n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14 & 0x7F | 0x80, n >> 21 & 0x7F | 0x80)
    return bytes((0x15, *more, n >> 28))


def _page_tail(rows: int) -> bytes:
    return b"\x1c\x15" + _varint(rows) + b"\x15\x00\x15\x06\x15\x06\x00\x00"


def _varint(number: int) -> bytes:
    """Return a number that is not negative, as thrift encodes signed ones."""
    return _unsigned(number << 1)


def _unsigned(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
