"""Decode and encode Thrift's compact protocol, to forge the metadata of Parquet files.

Source: Apache Thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "Struct", "decode", "encode", "get"]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
_INTEGERS: Final = (I16, I32, I64)
_MAX_BITS: Final = 70  # a number of 64 bits takes ten bytes

# Field number to (type, value). A list or set is (type of its items, items). The metadata of
# Parquet files has no maps.
Struct = dict[int, tuple[int, Any]]


def get(of: Mapping[int, tuple[int, Any]], number: int, otherwise: Any = None) -> Any:
    """Return the value of a field, or the items of a list."""
    kind, found = of.get(number, (0, otherwise))
    return found[1] if kind in (LIST, SET) else found


def decode(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins at a byte, and its end. Raise ValueError if there is none."""
    try:
        return _struct(data, at)
    except (IndexError, RecursionError, struct.error) as error:
        raise ValueError(f"no Thrift struct at byte {at}: it is cut off or damaged") from error


def _struct(data: bytes, at: int) -> tuple[Struct, int]:
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _field(data, at, kind)
    return fields, at + 1


def _field(data: bytes, at: int, kind: int) -> tuple[tuple[int, Any], int]:
    if kind in (TRUE, FALSE):
        return (kind, kind == TRUE), at
    found, at = _value(data, at, kind)
    return (kind, found), at


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == STRUCT:
        return _struct(data, at)
    if kind in (TRUE, FALSE, BYTE):
        return data[at], at + 1
    if kind == DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind in (BINARY, UUID):
        size, at = _varint(data, at) if kind == BINARY else (16, at)
        if at + size > len(data):
            raise IndexError(size)
        return data[at : at + size], at + size
    if kind in (LIST, SET):
        head, at = data[at], at + 1
        size, at = (head >> 4, at) if head >> 4 != 15 else _varint(data, at)
        items = []
        for _ in range(size):
            item, at = _value(data, at, head & 0x0F)
            items.append(item)
        return (head & 0x0F, items), at
    raise ValueError(f"type {kind} at byte {at} does not occur in Parquet metadata")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while shift < _MAX_BITS:
        byte, at = data[at], at + 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
    raise IndexError(at)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at


def encode(fields: Struct) -> bytes:
    """Return a struct in bytes."""
    out = bytearray()
    _put_struct(out, fields)
    return bytes(out)


def _put_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, found) in sorted(fields.items()):
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _put_integer(out, number)
        if kind not in (TRUE, FALSE):
            _put(out, kind, found)
        last = number
    out.append(0)


def _put(out: bytearray, kind: int, found: Any) -> None:
    if kind in _INTEGERS:
        _put_integer(out, found)
    elif kind == STRUCT:
        _put_struct(out, found)
    elif kind in (TRUE, FALSE, BYTE):
        out.append(found)
    elif kind == DOUBLE:
        out += struct.pack("<d", found)
    elif kind in (BINARY, UUID):
        if kind == BINARY:
            _put_varint(out, len(found))
        out += found
    else:
        of, items = found
        out.append(min(len(items), 15) << 4 | of)
        if len(items) >= 15:
            _put_varint(out, len(items))
        for item in items:
            _put(out, of, item)


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_integer(out: bytearray, number: int) -> None:
    _put_varint(out, number << 1 if number >= 0 else (-number << 1) - 1)
