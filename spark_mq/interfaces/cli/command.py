"""Enter commands in one table, with the options that they share declared once.

The function of an entry gets the queue and group that the common options name, and its own options
as arguments. Its docstring is the help, and :mod:`spark_mq.interfaces.cli.output` shows what it
returns.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeVar

import typer
from typer.models import OptionInfo

from spark_mq.errors import QueueNotFound, SparkMQError
from spark_mq.group import ConsumerGroup
from spark_mq.interfaces.cli.output import INTERRUPTED, WrongCall, note, show
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.message import Format, check_format
from spark_mq.queue import Queue
from spark_mq.util.loading import load_named
from spark_mq.util.setting_fields import Setting, parse_settings, settings_of
from spark_mq.util.show import number_in, printable
from spark_mq.util.signals import calling_on_signal
from spark_mq.util.sql import connect
from spark_mq.util.validation import short_repr

_ALL_SETTINGS: Final = {**settings_of(QueueSettings), **settings_of(GroupSettings)}
_STORAGE_OPTION: Final = "--storage-option"


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return an option, which has the name of its parameter unless a long one is given.

    An option whose default is ``...`` is required.
    """
    return typer.Option(default, *names, help=help, **more)


def argument(help: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument, which is named after the function's parameter."""
    return typer.Argument(default, help=help, **more)


def check_sql(option: str, text: str | None, instead: str = "") -> None:
    """Raise InvalidOption if SQL is given without DuckDB. The API's error offers a function."""
    if text is not None:
        connect(option, text, instead).close()


def load_format(text: str | None) -> Format | None:
    """Return the format that MODULE:NAME names. A class that needs no arguments is called."""
    if text is None:
        return None
    what, example = f"--format {text} cannot be used", "spark_mq.integrations.formats:Json"
    loaded = load_named(text, what, "format", example=example)
    if isinstance(loaded, type) and _needs_nothing(loaded):
        loaded = loaded()
    return check_format(loaded)


def _needs_nothing(kind: type[Any]) -> bool:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):  # it needs arguments, or has no signature
        return False
    return True


def parse_pairs(name: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return NAME=VALUE texts as a mapping."""
    values = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            # The text may be a secret, so the error does not show it.
            shown = "" if name == _STORAGE_OPTION else f" {short_repr(key)}"
            raise WrongCall(f"{name}{shown} has no value: give NAME=VALUE")
        values[key] = value
    return values


def parse_sequence(text: str, what: str = "a sequence", *, option: str = "") -> int:
    """Return a sequence, or raise WrongCall. Without an option it suggests --message-id."""
    number = number_in(text)
    if number.isascii() and number.isdigit() and len(number) < 20:
        return int(number)
    given = f"{option}={short_repr(text)}" if option else repr(text)
    fix = "" if option else f", or --message-id {text}"
    raise WrongCall(f"{given} is not {what}: give a number or VERSION:ROW{fix}")


class _OutputFormat(StrEnum):
    table = "table"
    json = "json"


@dataclass
class Invocation:
    """What the common options of a call name. The queue and the group are opened at their use."""

    path: str | None = None
    group_name: str | None = None
    storage_pairs: Sequence[str] = ()
    yes: bool = False
    json: bool = False
    setting_pairs: Sequence[str] = ()
    exit_code: int = field(default=0, init=False)  # once the result is shown

    @cached_property
    def storage_options(self) -> dict[str, str]:
        return parse_pairs(_STORAGE_OPTION, self.storage_pairs)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the settings that the call gives. An unknown one stays text."""
        return parse_settings(
            parse_pairs("--set", self.setting_pairs), QueueSettings, GroupSettings
        )

    @cached_property
    def queue(self) -> Queue:
        return Queue.open(str(self.path), storage_options=self.storage_options)

    def queue_or_folder(self) -> Queue | QueueMonitor:
        """Return the queue at the path, or the queues below it. Raise QueueNotFound."""
        try:
            return self.queue
        except QueueNotFound:
            monitor = QueueMonitor(str(self.path), self.storage_options, max_age=0)
            if not monitor.queues():
                raise
            return monitor

    @cached_property
    def group(self) -> ConsumerGroup:
        return self.existing_group(self.group_name)

    def existing_group(self, name: str | None) -> ConsumerGroup:
        """Return a group, or raise GroupNotFound instead of creating it."""
        return self.queue.group(str(name), create=False)

    def confirm(self, question: str) -> None:
        """Ask before data is lost. Raise Exit for a no, WrongCall without a terminal."""
        if self.yes:
            return
        question = printable(question)
        if not sys.stdin.isatty():
            raise WrongCall(f"{question} Nobody can answer here: give --yes")
        if not typer.confirm(question, err=True):
            note("nothing was changed")
            raise typer.Exit(INTERRUPTED)


def _complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return the settings that the command may change, each also with its default."""
    words = context.command_path.split()[-2:]
    offered = settings_of(GroupSettings if words[:1] == ["group"] else QueueSettings)
    if words[-1:] == ["create"]:
        offered = _ALL_SETTINGS
    return [
        f"{name}={value}"
        for name, setting in offered.items()
        if name.startswith(incomplete)
        for value in ("", setting.shown_default)
    ]


def _complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    given = Invocation(
        context.params.get("queue"), None, context.params.get("storage_option") or ()
    )
    try:
        names = given.queue.groups() if given.path else []
    except (SparkMQError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    """Return a parameter as the signature of a function has it, from which typer reads it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _with_option_names(parameter: inspect.Parameter, from_environment: bool) -> inspect.Parameter:
    """Name a parameter's option, and forget its variable unless the environment may give it."""
    info = copy(parameter.default)
    names = info.param_decls or ()
    if isinstance(info, OptionInfo) and not any(name.startswith("--") for name in names):
        info.param_decls = (*names, f"--{parameter.name.replace('_', '-')}")
    if not from_environment:
        info.envvar = None
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=info)


_QUEUE_HELP: Final = "The queue: a path or a URI."
_QUEUE: Final = _parameter(
    "queue",
    str,
    option(
        _QUEUE_HELP,
        "-q",
        default=...,
        metavar="PATH",
        envvar="SPARK_MQ_QUEUE",
    ),
)
_GROUP_HELP: Final = "The group."
# How a command names what it is about.
NOTHING: Final = ()
QUEUE: Final = (_QUEUE,)
QUEUE_ARGUMENT: Final = (_parameter("queue", str, argument(_QUEUE_HELP, metavar="QUEUE")),)
GROUP: Final = (
    _QUEUE,
    _parameter(
        "group",
        str,
        option(
            _GROUP_HELP,
            "-g",
            default="default",
            metavar="NAME",
            autocompletion=_complete_groups,
            envvar="SPARK_MQ_GROUP",
        ),
    ),
)
GROUP_ARGUMENT: Final = (
    _parameter(
        "group", str, argument(_GROUP_HELP, metavar="GROUP", autocompletion=_complete_groups)
    ),
    _QUEUE,
)

_YES: Final = _parameter("yes", bool, option("Do not ask.", "-y", default=False))
_STORAGE: Final = _parameter(
    "storage_option",
    list[str] | None,
    option(
        "Option of the object store. Repeatable. Prefer the environment for secrets.",
        metavar="NAME=VALUE",
        envvar="SPARK_MQ_STORAGE_OPTION",
    ),
)
_OUTPUT: Final = _parameter(
    "output",
    _OutputFormat,
    option("A table, or JSON lines.", "-o", default=_OutputFormat.table, envvar="SPARK_MQ_OUTPUT"),
)


def settings(example: str, *common: str) -> Sequence[inspect.Parameter]:
    """Return the option --set, and an option for each `common` setting."""
    text = f"A setting, such as {example}. Repeatable."
    info = option(text, "--set", metavar="NAME=VALUE", autocompletion=_complete_settings)
    rest = _parameter("settings", list[str] | None, info)
    return (*(_setting(_ALL_SETTINGS[name]) for name in common), rest)


def _setting(setting: Setting) -> inspect.Parameter:
    brief = setting.doc.replace("`", "").partition(". ")[0].rstrip(".")
    default = False if setting.default is None else setting.shown_default
    return _parameter(setting.name, str | None, option(f"{brief}.", show_default=default))


def options_of(call: Callable[..., Any], **infos: OptionInfo) -> Sequence[inspect.Parameter]:
    """Return options that are passed to a call, with the kinds and defaults that it has for them.

    What is neither a number nor a text, such as a duration, is typed as text.
    """
    parameters = inspect.signature(call).parameters
    options = []
    for name, info in infos.items():
        written = str(parameters[name].annotation)
        kind = int if written.startswith("int") else str
        own = copy(info)
        own.default = parameters[name].default
        options.append(_parameter(name, kind | None if "None" in written else kind, own))
    return options


@dataclass(frozen=True)
class Command:
    """An entry of the table: a name such as ``group pause``, and the call that it makes."""

    name: str
    call: Callable[..., Any]
    about: Sequence[inspect.Parameter]
    passed: Sequence[inspect.Parameter]
    common: Sequence[inspect.Parameter]
    from_environment: bool

    def function(self) -> Callable[..., None]:
        """Return the function that typer reads the arguments from, and calls with them."""
        own = list(inspect.signature(self.call, eval_str=True).parameters.values())[1:]
        own = [*self.passed, *(given for given in own if given.kind is not given.VAR_KEYWORD)]
        names = {parameter.name for parameter in own}

        def run(**values: Any) -> None:
            given = {name: value for name, value in values.items() if name not in names}
            ctx = _invocation(given)
            show(self.call(ctx, **{name: values[name] for name in names}), json=ctx.json)
            if ctx.exit_code:
                raise typer.Exit(ctx.exit_code)

        given = (*self.about, *own, *self.common)
        parameters = [_with_option_names(parameter, self.from_environment) for parameter in given]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__doc__ = self.call.__doc__
        return run


def _invocation(values: Mapping[str, Any]) -> Invocation:
    common = [f"{name}={values[name]}" for name in _ALL_SETTINGS if values.get(name) is not None]
    return Invocation(
        path=values.get("queue"),
        group_name=values.get("group"),
        storage_pairs=values.get("storage_option") or (),
        yes=values.get("yes", False),
        json=values.get("output") is _OutputFormat.json,
        setting_pairs=[*common, *(values.get("settings") or ())],
    )


COMMANDS: Final[dict[str, Command]] = {}
Call = TypeVar("Call", bound=Callable[..., Any])


def command(
    name: str,
    about: Sequence[inspect.Parameter] = QUEUE,
    *,
    passes: Sequence[inspect.Parameter] = (),
    asks: bool = False,
    destroys: bool = False,
    prints: bool = True,
) -> Callable[[Call], Call]:
    """Enter a function in the table, with what names its queue or group, and what it does.

    Beside its own options it gets those that it `passes` on, as keyword arguments. A command that
    asks, or destroys without asking, reads no variable of the environment, which somebody may have
    set for another command.
    """
    common = [*([_YES] if asks else ()), _STORAGE, *([_OUTPUT] if prints else ())]

    def enter(call: Call) -> Call:
        COMMANDS[name] = Command(name, call, about, passes, common, not (asks or destroys))
        return call

    return enter


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set, so that running work can end first."""
    stop = threading.Event()
    with calling_on_signal(lambda _: stop.set(), signal.SIGTERM, signal.SIGINT):
        yield stop
