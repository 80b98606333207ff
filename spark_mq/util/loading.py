"""Load modules at their first use: of public names, of integrations, of what users name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.util.failures import describe_error

INTEGRATIONS: Final[dict[str, str]] = {}
"""The modules of integrations by their job. The package's face fills it, so the core knows none."""


def integration(job: str) -> Any:
    """Return the module that does a job for the core."""
    return importlib.import_module(INTEGRATIONS[job])


def lazy_names(
    namespace: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, by the module of each name in it."""
    package = namespace["__name__"]

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *namespace["__all__"]})

    return load, names


def load_handler(
    text: str, what: str, load: Callable[[str], ModuleType] = importlib.import_module
) -> Callable[..., Any]:
    """Return the function that MODULE:FUNCTION or FILE.py:FUNCTION names. Raise InvalidOption."""
    function = load_named(text, what, "function", load)
    if not callable(function):
        raise InvalidOption(f"{what}: {text} is not a function", option="handler", value=text)
    loaded: Callable[..., Any] = function
    return loaded


def load_named(
    text: str,
    what: str,
    kind: str,
    load: Callable[[str], ModuleType] = importlib.import_module,
    example: str = "billing:process",
) -> Any:
    """Return what MODULE:NAME or FILE.py:NAME names, which is of a `kind`. Raise InvalidOption."""

    def wrong(problem: str) -> InvalidOption:
        return InvalidOption(f"{what}: {problem}", option="handler", value=text)

    where, colon, name = text.rpartition(":")
    if not (where and colon and name):
        raise wrong(f"give MODULE:{kind.upper()}, as in {example}")
    if where.endswith(".py") and not Path(where).is_file():
        raise wrong(f"there is no file {where}")
    sys.path.insert(0, str(folder_of(text)))
    try:
        module = load(Path(where).stem if where.endswith(".py") else where)
    except ImportError as error:
        raise wrong(f"the module cannot be imported ({error})") from error
    except SystemExit as error:
        raise wrong(f"its import raised {describe_error(error)}") from error
    if not hasattr(module, name):
        raise wrong(f"{module.__file__} has no {kind} {name!r}")
    return getattr(module, name)


def folder_of(handler: str) -> Path:
    """Return the folder from which a handler is imported."""
    where = handler.rpartition(":")[0]
    return Path(where).resolve().parent if where.endswith(".py") else Path.cwd()


def load_library(module: str, what: str, extra: str, *, library: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {library or module}, which cannot be imported: "
            f"install spark-mq[{extra}]",
            name=error.name,
        ) from error
