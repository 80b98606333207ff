"""Structs of Thrift's compact protocol without a schema, to forge metadata of Parquet files."""

from __future__ import annotations

from typing import Any, Final

from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

__all__ = ["I64", "Struct", "decode", "encode"]

I64: Final = TType.I64
SCALARS: Final = {
    **{TType.BOOL: "Bool", TType.BYTE: "Byte", TType.DOUBLE: "Double", TType.STRING: "Binary"},
    **{TType.I16: "I16", TType.I32: "I32", TType.I64: "I64"},
}

Struct = dict[int, tuple[int, Any]]
"""Field number to (type, value). A list is (type of its items, items)."""


def decode(data: bytes, at: int) -> tuple[Struct, int]:
    """Return the struct that begins at a byte, and its end."""
    buffer = TMemoryBuffer(data[at:])
    fields = _read(TCompactProtocol(buffer), TType.STRUCT)
    return fields, at + buffer.cstringio_buf.tell()


def _read(protocol: TCompactProtocol, kind: int) -> Any:
    if kind == TType.STRUCT:
        fields: Struct = {}
        protocol.readStructBegin()
        while (head := protocol.readFieldBegin())[1] != TType.STOP:
            _, of, number = head
            fields[number] = of, _read(protocol, of)
            protocol.readFieldEnd()
        protocol.readStructEnd()
        return fields
    if kind == TType.LIST:
        of, size = protocol.readListBegin()
        items = [_read(protocol, of) for _ in range(size)]
        protocol.readListEnd()
        return of, items
    return getattr(protocol, f"read{SCALARS[kind]}")()


def encode(fields: Struct) -> bytes:
    """Return a struct in bytes."""
    buffer = TMemoryBuffer()
    _write(TCompactProtocol(buffer), TType.STRUCT, fields)
    return bytes(buffer.getvalue())


def _write(protocol: TCompactProtocol, kind: int, value: Any) -> None:
    if kind == TType.STRUCT:
        protocol.writeStructBegin("")
        for number, (of, inner) in sorted(value.items()):
            protocol.writeFieldBegin("", of, number)
            _write(protocol, of, inner)
            protocol.writeFieldEnd()
        protocol.writeFieldStop()
        protocol.writeStructEnd()
    elif kind == TType.LIST:
        of, items = value
        protocol.writeListBegin(of, len(items))
        for item in items:
            _write(protocol, of, item)
        protocol.writeListEnd()
    else:
        getattr(protocol, f"write{SCALARS[kind]}")(value)
