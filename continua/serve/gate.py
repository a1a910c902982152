"""Who may come in, and with how much: keys, bodies that end, and answers that are errors."""

import asyncio
import contextlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from continua.serve.wire import Refusal, parsed

SURPLUS = 4 * 2**20  # bytes of a body that is too long which are read and dropped, so that the refusal arrives
PATIENCE = 1.0  # seconds for them


@dataclass(frozen=True)
class Gate:
    """Who may come in, with how much, and how long a body may take."""

    key: str | None = None
    body: int = 2 * 2**20
    seconds: float = 20.0


def check_key(request: Request, gate: Gate) -> None:
    """Compare the key in constant time."""
    if gate.key is None:
        return
    said = request.headers.get("authorization", "")
    given = said.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, gate.key.encode()):
        raise Refusal(401, "The API key is missing or wrong.", kind="authentication_error", code="invalid_api_key")


async def body_of(request: Request, gate: Gate) -> dict[str, Any]:
    """The JSON of a request whose body is not too long and does not take for ever."""
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said) > gate.body:
        if "expect" not in request.headers:  # who asks first has sent nothing yet
            await _drop(request)
        raise Refusal(413, f"A body has {gate.body} bytes at most, this one {said}.", headers={"Connection": "close"})
    try:
        async with asyncio.timeout(gate.seconds):
            return parsed(await _read(request, gate.body))
    except TimeoutError:
        words = f"The body did not arrive within {gate.seconds:g} s."
        raise Refusal(408, words, headers={"Connection": "close"}) from None


async def _drop(request: Request) -> None:
    """Read on for a while: who is still writing when a connection is closed loses the answer with it."""
    dropped = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                dropped += len(chunk)
                if dropped > SURPLUS:
                    return


async def _read(request: Request, limit: int) -> bytes:
    got = bytearray()
    async for chunk in request.stream():
        got += chunk
        if len(got) > limit:
            raise Refusal(413, f"A body has {limit} bytes at most.", headers={"Connection": "close"})
    return bytes(got)


def answer(refusal: Refusal) -> JSONResponse:
    """A refusal on the wire."""
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers)


def failed(problem: Exception) -> Refusal:
    """What is said of a failure of our own."""
    return Refusal(500, f"The server failed: {type(problem).__name__}.", kind="server_error", code="failed")


def answer_failures(
    app: FastAPI, as_refusal: Callable[[Exception], Refusal], kinds: tuple[type[Exception], ...] = ()
) -> None:
    """Let every failure be a sentence; ``kinds`` are expected ones beside refusals and unknown addresses."""

    async def refused(request: Request, problem: Exception) -> JSONResponse:
        return answer(problem if isinstance(problem, Refusal) else as_refusal(problem))

    for kind in (Refusal, HTTPException, *kinds, Exception):
        app.add_exception_handler(kind, refused)
