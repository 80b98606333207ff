"""Define the application with its pages and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from spark_mq.errors import (
    GroupNotFound,
    InvalidOption,
    MessagesHeld,
    QueueNotFound,
    ScheduleNotFound,
    SparkMQError,
)
from spark_mq.inspect.health import HealthLimits, check_health
from spark_mq.integrations.prometheus import CONTENT_TYPE, exposition
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web.changes import change, confirmation
from spark_mq.interfaces.web.message_pages import (
    letters_form,
    letters_page,
    message_page,
    messages_form,
    messages_page,
)
from spark_mq.interfaces.web.queue_pages import (
    batches_page,
    changes_page,
    group_page,
    home,
    queue_page,
    schedules_page,
    sweeps_page,
)
from spark_mq.interfaces.web.security import Access, Guard
from spark_mq.interfaces.web.view import Forbidden, View, render

_log = logging.getLogger(__name__)

THREADS: Final = 8  # pages that are made at the same time. It bounds memory
MAX_FORM: Final = 64 * 1024  # bytes of a form
MAX_FIELDS: Final = 20
FORM_SECONDS: Final = 10.0  # until the whole form is there
# Files that the pages load. htmx is version 2.0.11, as npm has it.
_FILES: Final = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "tables.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "htmx.LICENSE.txt": "text/plain",
}
# The pages of a queue by the first part of their address.
_PAGES: Final[Mapping[str, Callable[[View], str]]] = {
    "queue": queue_page,
    "group": group_page,
    "messages": messages_page,
    "message": message_page,
    "letters": letters_page,
    "schedules": schedules_page,
    "batches": batches_page,
    "sweeps": sweeps_page,
    "changes": changes_page,
    "change": confirmation,
}
# The forms of pages that take free text, with what they offer. An error shows them again.
_FORMS: Final[Mapping[Callable[[View], str], tuple[str, Callable[[View], dict[str, Any]]]]] = {
    letters_page: ("letters_form.html", letters_form),
    messages_page: ("messages_form.html", messages_form),
}
_STATUS: Final = (
    (Forbidden, 403), (QueueNotFound, 404), (GroupNotFound, 404), (ScheduleNotFound, 404),
    (InvalidOption, 400), (MessagesHeld, 409), (SparkMQError, 503), (OSError, 503),
)  # fmt: skip


def create_app(
    monitor: QueueMonitor, access: Access, health: HealthLimits | None = None
) -> Starlette:
    pages = _Pages(monitor, access, health or HealthLimits())
    routes = [Route("/", pages.endpoint(home))]
    routes += [
        Route(f"/{name}/{{queue:path}}", pages.endpoint(show), methods=["GET"])
        for name, show in _PAGES.items()
    ]
    routes += [
        Route("/change/{queue:path}", pages.change, methods=["POST"]),
        Route("/healthz", pages.healthz),
        Route("/metrics", pages.metrics),
        Route("/static/{name}", _file),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=_lifespan,
    )


@contextlib.asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


class _Pages:
    def __init__(self, monitor: QueueMonitor, access: Access, health: HealthLimits) -> None:
        self._monitor = monitor
        self._access = access
        self._health = health

    def _view(self, request: Request, query: Mapping[str, str]) -> View:
        user = request.state.user
        return View(
            self._monitor,
            request.path_params.get("queue", ""),
            query,
            self._health,
            self._access.allow_changes,
            user,
            self._access.csrf_token(request.state.session, user),
            not request.state.is_new
            and request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"),
        )

    def endpoint(self, show: Callable[[View], str]) -> Callable[[Request], Response]:
        """Return the endpoint of a page, which runs in a thread."""

        def endpoint(request: Request) -> Response:
            view = self._view(request, _query(request))
            return _answer(view, lambda: HTMLResponse(show(view)), show)

        return endpoint

    async def change(self, request: Request) -> Response:
        body = b""
        try:
            async with asyncio.timeout(FORM_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_FORM:
                        return _error(413, "The form is too large.")
        except TimeoutError:
            answer = _error(408, f"The form did not arrive within {FORM_SECONDS:.0f} seconds.")
            answer.headers["Connection"] = "close"  # the rest of the form is of no use
            return answer
        try:
            given = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS))
        except ValueError:
            return _error(400, f"The form has more than {MAX_FIELDS} fields.")
        view = self._view(request, given)
        return await run_in_threadpool(
            _answer, view, lambda: RedirectResponse(change(view), status_code=303)
        )

    def healthz(self, request: Request) -> Response:
        """Answer 200 if all queues are healthy, otherwise 503. It is open, so it names none."""
        now, problems = datetime.now(UTC), 0
        try:
            for overview in self._monitor.all().values():
                if isinstance(overview, SparkMQError):
                    problems += 1
                else:
                    problems += len(check_health(overview, now, self._health).problems)
        except (SparkMQError, OSError):
            problems += 1
        healthy = {"healthy": not problems, "problems": problems}
        return JSONResponse(healthy, 503 if problems else 200)

    def metrics(self, request: Request) -> Response:
        content = exposition(self._monitor.by_path())
        return Response(content, headers={"Content-Type": CONTENT_TYPE})


def _query(request: Request) -> dict[str, str]:
    """Return the last parameter of each name, and all ticked letters with commas between."""
    given = dict(request.query_params)
    return {**given, "pick": ",".join(request.query_params.getlist("pick"))}


def _answer(
    view: View, make: Callable[[], Response], show: Callable[[View], str] | None = None
) -> Response:
    """Make an answer, or a page that explains the error and has the form with its input."""
    try:
        return make()
    except (SparkMQError, OSError) as error:
        status = next(code for kind, code in _STATUS if isinstance(error, kind))
        if status >= 500:
            _log.error("a page failed: %s", error)
            view.monitor.close(view.name)
        return _error(status, str(error) or type(error).__name__, view, **_form(view, status, show))


def _form(view: View, status: int, show: Callable[[View], str] | None) -> dict[str, Any]:
    if status >= 500 or not view.name:
        return {}
    try:
        view.overview  # noqa: B018
        if show is None or show not in _FORMS or status not in (400, 403):
            return {"queue": view.name}
        template, offers = _FORMS[show]
        return {"queue": view.name, "form": template, **offers(view)}
    except (SparkMQError, OSError):
        return {}


def _error(status: int, text: str, view: View | None = None, **shown: Any) -> Response:
    known = {"title": f"Error {status}", "text": text, "queue": None, "form": None}
    return HTMLResponse(render("error.html", view, **{**known, **shown}), status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _error(error.status_code, error.detail)
    answer.headers.update(error.headers or {})
    return answer


async def _internal_error(request: Request, error: Exception) -> Response:
    # The text of an unknown error may hold a secret, so it goes to the log only.
    return _error(500, "The page has a fault. The log of the server shows it.")


def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        raise HTTPException(404)
    file = files(__package__).joinpath("static", name)  # perhaps in an archive
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(file.read_bytes(), media_type=_FILES[name], headers=headers)
