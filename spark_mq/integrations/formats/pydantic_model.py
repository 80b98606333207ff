"""Encode values of Pydantic models as JSON, and validate what is decoded."""

from __future__ import annotations

from typing import Any

from spark_mq.errors import InvalidPayload
from spark_mq.payload_format import SHOWN_ERRORS, load_library, unencodable, unusable
from spark_mq.util.validation import short_repr


class Pydantic:
    """JSON that a Pydantic model validates. Needs the extra ``spark-mq[pydantic]``.

    The model may be any type that Pydantic knows, such as a dataclass or ``list[Order]``. Raises
    InvalidOption if Pydantic does not know it, or if it is the name of a type.

    Examples
    --------
    >>> Pydantic(dict[str, int]).decode(b'{"a": 1}')
    {'a': 1}
    """

    def __init__(self, model: Any) -> None:
        self._pydantic = load_library("pydantic", "Pydantic", "pydantic")
        self.model = model
        self._adapter = self._adapter_of(model)
        self._name = getattr(model, "__name__", str(model))

    def _adapter_of(self, model: Any) -> Any:
        if isinstance(model, str):
            raise unusable(Pydantic, f"needs a type, and {short_repr(model)} is a text")
        try:
            adapter = self._pydantic.TypeAdapter(model)
        except self._pydantic.PydanticUserError as error:
            why = f"cannot use {short_repr(model)} as a type ({error.code or type(error).__name__})"
            raise unusable(Pydantic, why) from None
        if not adapter.pydantic_complete:
            why = f"needs all types of {short_repr(model)} to be defined before it is made"
            raise unusable(Pydantic, why)
        return adapter

    def encode(self, value: Any) -> bytes:
        """Return a value of the model as JSON. It is validated first. Raises InvalidOption."""
        try:
            self._adapter.validate_python(value, by_alias=True, by_name=True)
            encoded: bytes = self._adapter.dump_json(value, by_alias=True, warnings="error")
            return encoded
        except self._pydantic.ValidationError as error:
            why = f"does not fit {self._name}: {self._problems(error)}"
        except self._pydantic.PydanticUserError as error:
            why = f"has no JSON form: {error.code}"
        except (TypeError, ValueError) as error:
            why = f"has no JSON form as {self._name} ({type(error).__name__})"
        raise unencodable(value, why)

    def decode(self, payload: bytes) -> Any:
        """Return the validated value of a payload. Raises InvalidPayload.

        The error has the places and Pydantic's types of errors, because its texts may show values.
        """
        try:
            return self._adapter.validate_json(payload)
        except self._pydantic.ValidationError as error:
            raise InvalidPayload(f"not a valid {self._name}: {self._problems(error)}") from None

    def _problems(self, error: Any) -> str:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        known = self._known_names()
        shown = []
        for problem in errors[:SHOWN_ERRORS]:
            # The name of an unknown field, or of an entry of a dict, may be a secret.
            parts = (
                f"[{part}]" if isinstance(part, int) else f".{part if part in known else '*'}"
                for part in problem["loc"]
            )
            shown.append(f"${''.join(parts)}: {problem['type']}")
        more = [f"and {len(errors) - SHOWN_ERRORS} more"] if len(errors) > SHOWN_ERRORS else []
        return ", ".join(shown + more)

    def _known_names(self) -> set[str]:
        try:
            schema = self._adapter.json_schema()
        except self._pydantic.PydanticUserError:  # a model with a type that JSON Schema lacks
            return set()
        return {name for part in [schema, *schema.get("$defs", {}).values()]
                for name in part.get("properties", ())}  # fmt: skip
