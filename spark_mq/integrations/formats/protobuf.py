"""Encode Protobuf messages."""

from __future__ import annotations

from typing import Any

from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.payload_format import load_library, unencodable
from spark_mq.util.validation import invalid


class Protobuf:
    """A Protobuf message. Needs the extra ``spark-mq[protobuf]``.

    `message_type` is the class that protoc generated, or one of :meth:`from_descriptors`.

    Examples
    --------
    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> Protobuf(Int64Value).decode(b"\x08\x07").value
    7
    """

    def __init__(self, message_type: Any) -> None:
        self._protobuf = load_library("google.protobuf.message", "Protobuf", "protobuf")
        base = self._protobuf.Message
        if not (isinstance(message_type, type) and issubclass(message_type, base)):
            raise invalid(
                "message_type",
                message_type,
                "is not the class of a Protobuf message: give the class that protoc generated, "
                "such as orders_pb2.Order",
            )
        self.message_type: Any = message_type

    @classmethod
    def from_descriptors(cls, descriptors: bytes, name: str) -> Protobuf:
        """Return the format of a message that a descriptor set defines.

        `descriptors` are what ``protoc --include_imports --descriptor_set_out=FILE`` writes, and
        `name` is the full name of the message, such as "shop.Order". Raises InvalidOption if they
        are no descriptor set, an import is missing, or there is no such message.
        """
        message = load_library("google.protobuf.message", "Protobuf", "protobuf")
        pools = load_library("google.protobuf.descriptor_pool", "Protobuf", "protobuf")
        factory = load_library("google.protobuf.message_factory", "Protobuf", "protobuf")
        files = load_library("google.protobuf.descriptor_pb2", "Protobuf", "protobuf")
        pool = pools.DescriptorPool()
        try:
            for file in files.FileDescriptorSet.FromString(descriptors).file:
                pool.Add(file)
            message_class = factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except (message.DecodeError, TypeError, KeyError) as error:
            raise InvalidOption(
                f"the descriptor set has no message {name!r} that can be used "
                f"({type(error).__name__}: {error}). Write it with protoc --include_imports",
                option="name",
                value=name,
            ) from None
        return cls(message_class)

    def encode(self, value: Any) -> bytes:
        """Return a message of the type as bytes. Raises InvalidOption."""
        name = self.message_type.DESCRIPTOR.full_name
        if not isinstance(value, self.message_type):
            raise unencodable(value, f"is not of type {name}")
        try:
            encoded: bytes = value.SerializeToString(deterministic=True)
        except self._protobuf.EncodeError as error:
            raise unencodable(value, f"has no bytes: {error}") from None
        return encoded

    def decode(self, payload: bytes) -> Any:
        """Return a payload as a message, with unknown fields. Raises InvalidPayload.

        Protobuf has no marks of types, so bytes of another message may pass.
        """
        try:
            message = self.message_type.FromString(payload)
        except self._protobuf.DecodeError:
            message = None
        if message is None or not message.IsInitialized():
            why = "the bytes are damaged" if message is None else "required fields are missing"
            raise InvalidPayload(
                f"not valid Protobuf for {self.message_type.DESCRIPTOR.full_name}: {why}"
            )
        return message
