"""Build HTML. Every text is escaped, unless it is HTML that this module has built."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

__all__ = ["Child", "Html", "el", "join", "text_of"]


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = str | int | float | Iterable["Child"] | None  # the content of an element
_VOID: Final = frozenset({"br", "hr", "input", "link", "meta"})  # elements without content


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element. An attribute of None or False is left out.

    ``class_`` becomes ``class``, and ``hx_get`` becomes ``hx-get``.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    return Html("".join(map(_html, children)))


def _html(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return escape(text_of(child))
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(_html, child))


def _value(value: str | int | float | bool) -> str:
    return "" if value is True else text_of(str(value))


def text_of(text: str) -> str:
    """Return a text without characters that hide or reorder others. Lines and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)
