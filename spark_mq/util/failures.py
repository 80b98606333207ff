"""Handle what the functions of users raise and return, whose own methods may fail."""

from __future__ import annotations

from collections.abc import Callable
from traceback import TracebackException
from types import TracebackType
from typing import Final

# Python's own attributes, not those that a class of the user has in their place.
class_name: Final = type.__dict__["__name__"].__get__
_cause_of: Final = BaseException.__dict__["__cause__"].__get__
_context_of: Final = BaseException.__dict__["__context__"].__get__
_traceback_of: Final = BaseException.__dict__["__traceback__"].__get__


def safe_text(value: object) -> str:
    """Return str() of a value, or what stands for it if its own method fails."""
    return _shown(str, value)


def safe_repr(value: object) -> str:
    """Return repr() of a value, or what stands for it if its own method fails."""
    return _shown(repr, value)


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an error."""
    return f"{class_name(type(error))}: {safe_text(error)}"


def traceable(error: BaseException) -> BaseException:
    """Return an error, or what stands for it if it cannot be logged."""
    try:
        str(error)  # PySpark's format of logs asks for it
        TracebackException.from_exception(error, lookup_lines=False)
    except KeyboardInterrupt:
        raise
    except BaseException:  # Python asks if an error is true, for example
        return RuntimeError(describe_error(error)).with_traceback(_traceback_of(error))
    return error


def exc_info(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error for a log, which would ask an error alone if it is true."""
    shown = traceable(error)
    return type(shown), shown, shown.__traceback__


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error from which an error was raised, or None."""
    cause = _cause_of(error)
    return _context_of(error) if cause is None else cause


STOPS: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
"""What ends a program, also out of a user's function. Tests add what stands for a death."""


def to_failure(error: BaseException, what: str = "the handler") -> Exception:
    """Return what a user's function raised as an Exception, but raise one of STOPS.

    A SystemExit, or an error that cannot even be asked for its class, would end a worker without a
    word.
    """
    if issubclass(type(error), STOPS):
        raise error
    cause: BaseException | None = error
    try:
        if isinstance(error, Exception) and error.__class__:  # which later checks ask for, too
            return error
    except KeyboardInterrupt:
        raise
    except BaseException:
        cause = None
    failure = RuntimeError(f"{what} raised {describe_error(error).removesuffix(': ')}")
    failure.__cause__ = cause
    return failure if cause is not None else failure.with_traceback(_traceback_of(error))


def _shown(show: Callable[[object], str], value: object) -> str:
    try:
        return str.__str__(show(value))  # a method may return a subclass of str
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kinds = class_name(type(value)), class_name(type(error))
        return f"({kinds[0]} without a text: its {show.__name__}() raised {kinds[1]})"
