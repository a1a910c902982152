"""Who may come in, and with how much: keys, bodies that end, and answers that are errors."""

import asyncio
import hmac
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from continua.serve.wire import Refusal, parsed


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
        raise Refusal(413, f"A body has {gate.body} bytes at most, this one {said}.", headers={"Connection": "close"})
    try:
        async with asyncio.timeout(gate.seconds):
            return parsed(await _read(request, gate.body))
    except TimeoutError:
        words = f"The body did not arrive within {gate.seconds:g} s."
        raise Refusal(408, words, headers={"Connection": "close"}) from None


async def _read(request: Request, limit: int) -> bytes:
    got = bytearray()
    async for chunk in request.stream():
        got += chunk
        if len(got) > limit:
            raise Refusal(413, f"A body has {limit} bytes at most.", headers={"Connection": "close"})
    return bytes(got)
