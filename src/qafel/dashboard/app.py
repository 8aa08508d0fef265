"""The web application of the page, and what it refuses.

- Hosts: a request must name the address that the page is served at, so that no other site can point its name
  here (DNS rebinding); the same holds for the Origin that a browser names.
- Token: where the page is not on loopback, the address must carry the token; it is kept in a cookie.
- Paths: runs have opaque ids, and the files of the page have fixed names.
- Content: the page may load only its own files (Content-Security-Policy), and shows names as text.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from qafel.dashboard.federation import IDENTITY, Federation
from qafel.dashboard.runs import Runs, readable
from qafel.dashboard.single_file import PAGE, SCRIPTS, STYLE
from qafel.errors import QafelError

FILES = {STYLE: "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}
COOKIE = "qafel-token-{}"
"""The name of the cookie, by port: browsers send the cookies of a host to all of its ports."""
MAX_DIGITS = 16
POLL = 0.5
"""Seconds between two looks at the files."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets a request pass only if it names this page's address and, where there is one, the token."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None) -> None:
        self.app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refusal(Request(scope))
        if refused is not None:
            refused.headers.update(HEADERS)
            await refused(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] += [pair for pair in more if pair[0] not in known]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only answers GET", 405)
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return PlainTextResponse("this page does not answer under that host name", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] not in self._hosts:
            return PlainTextResponse("this page does not answer requests of other sites", 403)
        if self._token is None:
            return None
        given, name = request.query_params.get("token"), COOKIE.format(host.rpartition(":")[2])
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(name, self._token, httponly=True, samesite="strict")
            return answer
        cookie = request.cookies.get(name, "")
        if given is None and hmac.compare_digest(cookie.encode(), self._token.encode()):
            return None
        return PlainTextResponse("the address of this page needs its token; qafel dashboard printed it", 401)


def create(runs: Runs, federation: Federation | None, hosts: frozenset[str], token: str | None) -> Starlette:
    """The application for these runs, and for a federation if there is one."""

    async def listed(_: Request) -> Response:
        listed = await asyncio.to_thread(runs.list)
        followed = [federation.listed] if federation is not None else []
        return _json({"folder": readable(runs.root), "runs": followed + listed})

    async def run(request: Request) -> Response:
        if federation is not None and request.path_params["id"] == IDENTITY:
            return _json(federation.run())
        return await _answer(runs.run, request.path_params["id"])

    async def events(request: Request) -> Response:
        first = request.query_params.get("first", "0")
        number = int(first) if first.isascii() and first.isdigit() and len(first) < MAX_DIGITS else 0
        return await _answer(runs.events, request.path_params["id"], number)

    async def stream(request: Request) -> Response:
        return StreamingResponse(_changes(runs, federation, request), media_type="text/event-stream")

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name != "index.html" and name not in FILES:
            return PlainTextResponse("there is no such file", 404)
        return Response((PAGE / name).read_bytes(), media_type=FILES.get(name, "text/html"))

    routes = [
        Route("/", page),
        Route("/api/runs", listed),
        Route("/api/run/{id:str}", run),
        Route("/api/events/{id:str}", events),
        Route("/api/stream", stream),
        Route("/{name:str}", page),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts, token=token)])


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _answer(function: Callable[..., Any], *arguments: Any) -> Response:
    try:
        return _json(await asyncio.to_thread(function, *arguments))
    except QafelError as error:
        return PlainTextResponse(str(error), 404)


async def _changes(runs: Runs, federation: Federation | None, request: Request) -> AsyncIterator[bytes]:
    """Server-sent events: ``runs`` when there are others, ``changed`` with ids, ``federation``."""
    before = await asyncio.to_thread(_state, runs, federation)
    running = [key for key, state in before.items() if state[0] == "running"]
    yield b"retry: 1000\n\nevent: runs\ndata: {}\n\n"
    if running:  # these, and the list, may have changed since the page read them
        yield b"event: changed\ndata: " + msgspec.json.encode(running) + b"\n\n"
    content: dict[str, Any] | None = None
    while not await request.is_disconnected():
        now = await asyncio.to_thread(_state, runs, federation)
        if now.keys() != before.keys() or any(now[key][0] != before[key][0] for key in now):
            yield b"event: runs\ndata: {}\n\n"
        changed = [key for key in now if before.get(key, now[key]) != now[key]]
        if changed:
            yield b"event: changed\ndata: " + msgspec.json.encode(changed) + b"\n\n"
        before = now
        if federation is not None and federation.content() != content:
            content = federation.content()
            yield b"event: federation\ndata: " + msgspec.json.encode(content) + b"\n\n"
        await asyncio.sleep(POLL)


def _state(runs: Runs, federation: Federation | None) -> dict[str, tuple[Any, ...]]:
    """What changes when a run does: whether it is running, and its files."""
    state: dict[str, tuple[Any, ...]] = {
        listed.id: (listed.state, runs.stamp(listed.id)) for listed in runs.list()
    }
    if federation is not None:
        state[IDENTITY] = federation.listed.state, federation.stamp
    return state
