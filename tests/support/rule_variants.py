"""Put a wrong version of a rule of the package in the place of the right one.

Rules have names, so that they may move from module to module. A variant makes the wrong version
from the right one. The functions that it is made of get the rule's arguments by name, so that the
order of the parameters does not matter.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

__all__ = ["Variant", "find_rule", "first", "gets", "instead", "returns", "rule_variant", "then"]

Rule = Callable[..., Any]
Variant = Callable[[Rule], Rule]


@contextlib.contextmanager
def rule_variant(name: str, variant: Variant) -> Iterator[None]:
    """Replace a rule wherever a module or its class binds it.

    The `name` is that of a function, a method or a property, such as "Breaker.why". If several
    packages have one, "ledger:extend" names the package. It fails if there is no such rule, or if
    the variant does not fit it.
    """
    owner, last, rule = find_rule(name)
    made = variant(rule.fget if isinstance(rule, property) else rule)
    misfits: list[Exception] = []

    def call(*args: Any, **given: Any) -> Any:  # a new function, which nothing else binds
        try:
            return made(*args, **given)
        except Exception as error:
            if type(error) in (AttributeError, KeyError, NameError, TypeError):
                misfits.append(error)
            raise

    wrong: Any = property(call) if isinstance(rule, property) else call
    if isinstance(owner, type):
        setattr(owner, last, wrong)
    else:
        _rebind(rule, wrong)
    try:
        yield
    finally:
        if isinstance(owner, type):
            setattr(owner, last, rule)
        else:
            _rebind(wrong, rule)  # also in modules that were imported meanwhile
    assert not misfits, f"the variant does not fit {name}: {misfits[0]!r}"


def find_rule(name: str) -> tuple[Any, str, Any]:
    """Return the module or class that defines a rule, its last name, and the rule."""
    package, _, path = name.rpartition(":")
    outer, _, inner = path.partition(".")
    found = []
    for place, module in tuple(sys.modules.items()):
        value = getattr(module, "__dict__", {}).get(outer)
        of_package = (package or "spark_mq") in place.split(".")
        if of_package and getattr(value, "__module__", None) == place:
            found.append((value if inner else module, inner or outer))
    assert len(found) == 1, f"there is no rule {name}, or more than one: {found}"
    ((owner, last),) = found
    assert last in vars(owner), f"there is no rule {name}"
    return owner, last, vars(owner)[last]


def _rebind(old: object, new: object) -> None:
    """Replace a function in all modules that bind it."""
    for module in tuple(sys.modules.values()):
        for name, value in tuple(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def returns(value: Any) -> Variant:
    return lambda right: lambda *args, **given: value


def instead(do: Callable[[Rule, SimpleNamespace], Any]) -> Variant:
    """``do(right, a)`` runs in the place of the rule. `a` has the arguments as attributes."""

    def variant(right: Rule) -> Rule:
        signature = inspect.signature(right)

        def wrong(*args: Any, **given: Any) -> Any:
            bound = signature.bind(*args, **given)
            bound.apply_defaults()
            return do(right, SimpleNamespace(**bound.arguments))

        return wrong

    return variant


def gets(**changes: Any) -> Variant:
    """The rule gets other arguments: values, or functions of all its arguments."""

    def call(right: Rule, a: SimpleNamespace) -> Any:
        changed = {name: one(a) if callable(one) else one for name, one in changes.items()}
        return right(**vars(a) | changed)

    return instead(call)


def first(act: Callable[[SimpleNamespace], Any]) -> Variant:
    """``act(a)`` is done before the rule."""

    def call(right: Rule, a: SimpleNamespace) -> Any:
        act(a)
        return right(**vars(a))

    return instead(call)


def then(change: Callable[[Any, SimpleNamespace], Any]) -> Variant:
    """``change(result, a)`` is what the rule returns."""
    return instead(lambda right, a: change(right(**vars(a)), a))
