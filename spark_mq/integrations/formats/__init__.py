"""Write the values of messages as bytes, and read them: JSON, Pydantic, Avro and Protobuf.

A format encodes what a publisher has and decodes what a worker gets. The libraries are extras, and
each is loaded by the format that needs it.
"""

from spark_mq.integrations.formats.avro import Avro
from spark_mq.integrations.formats.protobuf import Protobuf
from spark_mq.integrations.formats.pydantic_model import Pydantic
from spark_mq.payload_format import Format, Json

__all__ = ["Avro", "Format", "Json", "Protobuf", "Pydantic"]
