"""The server behind the page: a fixed table of files, and work for whoever has the token."""

import asyncio
import functools
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from continua.errors import ContinuaError
from continua.recipes.listing import recipes, settings_listed
from continua.serve.gate import Gate, answer, answer_failures, body_of, check_key, failed
from continua.serve.wire import Refusal
from continua.studio.bundle import INDEX, MODEL, Bundle
from continua.studio.live import Runs, watched
from continua.studio.page import KINDS, PageFile, page_files
from continua.studio.work import Process, Work, inspected

BODY = 64 * 1024
STREAMS = 16  # at once
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Guarded:
    """Answers requests that name this machine alone, from pages of this machine; adds what browsers shall forbid."""

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check Host and Origin before anything else."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refusal = self.refusal(request)
        app = self.app if refusal is None else answer(refusal)
        await app(scope, receive, sending)

    def refusal(self, request: Request) -> Refusal | None:
        """Why a request is not answered; None where it is."""
        if request.headers.get("host", "") not in self.hosts:
            words = "This server answers to 127.0.0.1 and localhost alone."
            return Refusal(421, words, code="foreign_host")
        origin = request.headers.get("origin")
        if origin is None and request.method in ("GET", "HEAD"):
            return None
        if origin not in self.origins:
            return Refusal(403, "Only the page of this server may ask for this.", code="foreign_origin")
        return None


@dataclass
class Behind:
    """What stands behind the page: its files, the runs of a folder, and the work that is under way."""

    bundle: Bundle
    model: Path
    runs: Runs
    work: Work
    gate: Gate
    files: dict[str, PageFile] = field(default_factory=page_files)
    streams: int = 0
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    # --- files --------------------------------------------------------------------------------------------------------

    async def file(self, request: Request) -> Response:
        """A file of the table, or none."""
        name = str(request.path_params.get("name", "")) or "index.html"
        if name == INDEX:
            return Response(self.bundle.as_json(), media_type=KINDS[".json"])
        if name == MODEL:
            return Response(await asyncio.to_thread(self.model.read_bytes), media_type=KINDS[".onnx"])
        one = self.files.get(name)
        if one is None:
            raise Refusal(404, "There is no such file.", code="not_found")
        if one.is_packed and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(one.kept, media_type=one.kind, headers={"content-encoding": "gzip"})
        return Response(await asyncio.to_thread(one.content), media_type=one.kind)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def listing(self, request: Request) -> Response:
        """All runs, and what is under way."""
        lines = await asyncio.to_thread(self.runs.lines)
        return JSONResponse({"runs": [asdict(line) for line in lines], "current": self._current()})

    async def recipes(self, request: Request) -> Response:
        """The recipes that can be started, with their settings that are numbers."""
        return JSONResponse({"recipes": await asyncio.to_thread(_recipes)})

    async def describe(self, request: Request) -> Response:
        """One run."""
        return JSONResponse(await asyncio.to_thread(self.runs.describe, request.path_params["run"]))

    async def compare(self, request: Request) -> Response:
        """Two runs."""
        first, second = (request.path_params[name] for name in ("first", "second"))
        return JSONResponse(await asyncio.to_thread(self.runs.compare, first, second))

    async def inspect(self, request: Request) -> Response:
        """What ``continua inspect`` says of a run."""
        place = await asyncio.to_thread(self.runs.find, request.path_params["run"])
        if self.looking.locked():
            raise Refusal(429, "Another run is looked at. Try again in a moment.", headers={"Retry-After": "5"})
        async with self.looking:
            try:
                return JSONResponse({"text": await asyncio.to_thread(inspected, place)})
            except subprocess.TimeoutExpired:
                raise Refusal(503, "It took too long. Use continua inspect.", kind="server_error") from None

    async def watch(self, request: Request) -> Response:
        """The curve of a run as it grows."""
        place = await asyncio.to_thread(self._place, request.path_params["run"])
        if self.streams >= STREAMS:
            words = f"Up to {STREAMS} curves are watched at once. Close some of them."
            raise Refusal(429, words, headers={"Retry-After": "5"})
        return StreamingResponse(
            self._counted(watched(place, lambda: self.work.is_on(place))),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        self.streams += 1
        try:
            async for one in events:
                yield one
        finally:
            self.streams -= 1

    def _place(self, number: str) -> Path:
        """The folder of a run, or that of the fit under way, which writes nothing before its first step."""
        current = self.work.current
        if number == "current" and current is not None:
            return current.run
        return self.runs.find(number)

    # --- work ---------------------------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """``continua fit``."""
        said = await body_of(request, self.gate)
        recipe = said.get("recipe")
        settings = said.get("settings", {})
        if not isinstance(recipe, str) or not isinstance(settings, dict):
            raise Refusal(400, "A fit has a recipe, which is a name, and settings by name.")
        await asyncio.to_thread(self.work.start, recipe, settings)
        return JSONResponse({"current": self._current()}, 202)

    async def resume(self, request: Request) -> Response:
        """``continua fit --resume``."""
        await body_of(request, self.gate)
        place = await asyncio.to_thread(self.runs.find, request.path_params["run"])
        await asyncio.to_thread(self.work.resume, place)
        return JSONResponse({"current": self._current()}, 202)

    async def stop(self, request: Request) -> Response:
        """Ctrl-C."""
        await body_of(request, self.gate)
        stopped = await asyncio.to_thread(self.work.stop)
        return JSONResponse({"stopped": stopped, "current": self._current()})

    def _current(self) -> dict[str, Any] | None:
        own: Process | None = self.work.current
        if own is None:
            return None
        return {
            "name": own.run.name,
            "command": " ".join(("continua", *own.words)),
            "code": own.code,
            "said": own.tail(),
        }


@functools.cache
def _recipes() -> list[dict[str, Any]]:
    found = []
    for name, words, time in recipes():
        own, training = settings_listed(name)
        steps = [one for one in training if one.name in ("steps", "seed")]
        numbers = [asdict(one) for one in (*steps, *own) if _is_number(one.default)]
        found.append({"name": name, "words": words, "time": time, "settings": numbers})
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Endpoint = Callable[[Request], Awaitable[Response]]


def studio_application(behind: Behind, port: int) -> FastAPI:
    """Routes; every failure is a sentence."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(behind.work.close)

    def keyed(endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            check_key(request, behind.gate)
            return await endpoint(request)

        return checked

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    for path, method, endpoint in (
        ("/api/runs", "GET", behind.listing),
        ("/api/recipes", "GET", behind.recipes),
        ("/api/runs/{run}", "GET", behind.describe),
        ("/api/runs/{run}/inspect", "GET", behind.inspect),
        ("/api/runs/{run}/watch", "GET", behind.watch),
        ("/api/compare/{first}/{second}", "GET", behind.compare),
        ("/api/fit", "POST", behind.start),
        ("/api/runs/{run}/resume", "POST", behind.resume),
        ("/api/stop", "POST", behind.stop),
    ):
        app.add_route(path, keyed(endpoint), methods=[method])
    app.add_route("/{name:path}", behind.file, methods=["GET", "HEAD"])
    app.add_middleware(Guarded, port=port)
    answer_failures(app, _as_refusal, (ContinuaError,))
    return app


def _as_refusal(problem: Exception) -> Refusal:
    if isinstance(problem, ContinuaError):
        return Refusal(400, str(problem))
    if isinstance(problem, HTTPException):
        return Refusal(problem.status_code, f"{problem.detail}.", code="not_found")
    return failed(problem)
