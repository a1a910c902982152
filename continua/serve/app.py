"""The web server: OpenAI's endpoints over the engine."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from continua.serve.embedding import Embedder
from continua.serve.gate import Gate, answer_failures, body_of, check_key, failed
from continua.serve.jobs import Ask
from continua.serve.metrics import Metrics
from continua.serve.service import Service
from continua.serve.texts import Piece, Texts
from continua.serve.wire import (
    CHAT,
    COMPLETION,
    EMBEDDING,
    Refusal,
    Wanted,
    check_fields,
    messages_of,
    texts_of,
    wanted,
)

SIZE_HEADER = "x-continua-size"
LOSS_HEADER = "x-continua-loss"  # the held-out loss of the sizes that wrote, by tokens


class Server:
    """The endpoints. ``service`` writes, ``embedder`` embeds; one of them is there."""

    def __init__(self, service: Service | None, embedder: Embedder | None, gate: Gate) -> None:
        self.service = service
        self.embedder = embedder
        self.gate = gate
        self.stopping = False
        self.made = int(time.time())

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.service.served.name if self.service is not None else self.embedder.served.name  # type: ignore[union-attr]

    # --- what is common to all ----------------------------------------------------------------------------------------

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON of a request whose key is right, whose body is not too long and does not take for ever."""
        self.check_key(request)
        return await body_of(request, self.gate)

    def check_key(self, request: Request) -> None:
        """Compare the key in constant time."""
        check_key(request, self.gate)

    def writer(self) -> Service:
        """The service that writes, or a refusal."""
        if self.service is None:
            words = "This model embeds texts and writes none. Use /v1/embeddings."
            raise Refusal(404, words, param="model", code="unsupported")
        return self.service

    # --- endpoints ----------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        """``/v1/completions``."""
        said = await self.body(request)
        check_fields(said, COMPLETION)
        service = self.writer()
        options = wanted(said)
        prompts = texts_of(said.get("prompt"), "prompt", service.rules.prompts)
        asks = [service.ask(prompt, options, "prompt") for prompt in prompts]
        return await self._answer(request, asks, options, _Completion(self.name, "cmpl"))

    async def chat(self, request: Request) -> Response:
        """``/v1/chat/completions``."""
        said = await self.body(request)
        check_fields(said, CHAT)
        service = self.writer()
        options = wanted(said)
        ask = await asyncio.to_thread(service.chat, messages_of(said.get("messages")), options)
        return await self._answer(request, [ask], options, _Chat(self.name, "chatcmpl"))

    async def _answer(self, request: Request, asks: Sequence[Ask], options: Wanted, shape: "_Shape") -> Response:
        service = self.writer()
        texts = Texts(service, asks, options).submit()
        try:
            if options.streams:
                pieces = texts.pieces()
                first = await anext(pieces)  # its size is known now, and whether it is written at all
                return EventStream(texts, first, pieces, shape, options.with_usage)
            return await self._whole(request, texts, shape)
        except BaseException:
            texts.cancel()
            raise

    async def _whole(self, request: Request, texts: Texts, shape: "_Shape") -> Response:
        """All of it at once; given up where the client goes."""
        collected = asyncio.ensure_future(_collected(texts))
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({collected, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not collected.done():
                texts.cancel()
                raise Refusal(499, "The client went away.", kind="server_error", code="cancelled")
            choices = [shape.choice(i, text, finish) for i, (text, finish) in enumerate(collected.result())]
        finally:
            collected.cancel()
            gone.cancel()
        content = shape.envelope(texts.size) | {"choices": choices, "usage": texts.usage()}
        loss = texts.loss()
        said = {SIZE_HEADER: texts.size} | ({} if loss is None else {LOSS_HEADER: f"{loss:.4f}"})
        return JSONResponse(content, headers=said)

    async def embeddings(self, request: Request) -> Response:
        """``/v1/embeddings``."""
        said = await self.body(request)
        check_fields(said, EMBEDDING)
        if self.embedder is None:
            words = "This model writes text and embeds none. Serve an encoder."
            raise Refusal(404, words, param="model", code="unsupported")
        content, size = await self.embedder.answer(said)
        return JSONResponse(content, headers={SIZE_HEADER: size})

    async def models(self, request: Request) -> Response:
        """``/v1/models``: the model, and its sizes under names of their own."""
        self.check_key(request)
        names = [self.name]
        if self.service is not None:
            names += [f"{self.name}:fast", *(f"{self.name}:{size.name}" for size in self.service.front.sizes)]
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """``/v1/models/NAME``."""
        self.check_key(request)
        name = str(request.path_params["name"])
        if self.service is not None:
            self.service.size_of(name)
        elif name.partition(":")[0] != self.name:
            raise Refusal(404, f"There is no model {name[:80]!r}.", param="model", code="model_not_found")
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"id": name, "object": "model", "created": self.made, "owned_by": "continua"}
        size = name.partition(":")[2]
        if self.service is not None and size in self.service.front:
            cost = self.service.front[size]
            found |= {"held_out_loss": cost.loss, "milliseconds_a_token": round(1e3 * cost.step[0], 3)}
        return found

    async def health(self, request: Request) -> Response:
        """``/health``."""
        alive = not self.stopping and (self.service is None or self.service.engine.is_alive)
        return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        """``/metrics``."""
        self.check_key(request)
        source = self.service.metrics if self.service is not None else self.embedder.metrics  # type: ignore[union-attr]
        return PlainTextResponse(source.text(), media_type="text/plain; version=0.0.4")


# --- shapes of answers ------------------------------------------------------------------------------------------------


class _Shape:
    """What all answers of one request share."""

    object = ""
    chunk = ""

    def __init__(self, model: str, prefix: str) -> None:
        self.model = model
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def envelope(self, size: str, *, chunk: bool = False) -> dict[str, Any]:
        """The fields around the choices; the fingerprint names the size."""
        return {
            "id": self.id,
            "object": self.chunk if chunk else self.object,
            "created": self.created,
            "model": f"{self.model}:{size}",
            "system_fingerprint": f"continua:{size}",
        }

    def choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def part(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        raise NotImplementedError


class _Completion(_Shape):
    object = "text_completion"
    chunk = "text_completion"

    def choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

    def part(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        return self.choice(piece.index, piece.text, piece.finish)


class _Chat(_Shape):
    object = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}

    def part(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        delta = ({"role": "assistant"} if is_first else {}) | {"content": piece.text}
        return {"index": piece.index, "delta": delta, "logprobs": None, "finish_reason": piece.finish}


class EventStream(Response):
    """Server-sent events: a chunk for each piece of text, then ``[DONE]``. Texts that nobody reads are given up."""

    def __init__(self, texts: Texts, first: Piece, rest: AsyncIterator[Piece], shape: _Shape, with_usage: bool) -> None:
        super().__init__(None, media_type="text/event-stream", headers={SIZE_HEADER: texts.size})
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self.texts = texts
        self.first = first
        self.rest = rest
        self.shape = shape
        self.with_usage = with_usage

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send until the end, or until the client is gone."""
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events():
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return
        finally:
            gone.cancel()
            self.texts.cancel()

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            yield self._event(self.first, is_first=True)
            begun = {self.first.index}
            async for piece in self.rest:
                yield self._event(piece, is_first=piece.index not in begun)
                begun.add(piece.index)
        except Refusal as refusal:
            yield _line(refusal.body())
            return
        if self.with_usage:
            end = self.shape.envelope(self.texts.size, chunk=True)
            yield _line(end | {"choices": [], "usage": self.texts.usage()})
        yield b"data: [DONE]\n\n"

    def _event(self, piece: Piece, *, is_first: bool) -> bytes:
        size = self.texts.jobs[piece.index].size or self.texts.size
        return _line(self.shape.envelope(size, chunk=True) | {"choices": [self.shape.part(piece, is_first)]})


def _line(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


async def _collected(texts: Texts) -> list[tuple[str, str]]:
    """The text of each prompt and how it ended."""
    parts: list[list[str]] = [[] for _ in texts.jobs]
    ends = [""] * len(texts.jobs)
    async for piece in texts.pieces():
        parts[piece.index].append(piece.text)
        ends[piece.index] = piece.finish or ends[piece.index]
    return [("".join(part), end) for part, end in zip(parts, ends, strict=True)]


async def _gone(request: Request) -> None:
    await _disconnect(request.receive)


async def _disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


# --- the application --------------------------------------------------------------------------------------------------


class Counted:
    """Counts answers by status."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Look at the beginning of every answer."""

        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.metrics.answered(message["status"])
            await send(message)

        await self.app(scope, receive, counting if scope["type"] == "http" else send)


def application(server: Server) -> FastAPI:
    """Routes, and every failure in OpenAI's shape."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        if server.service is not None:
            server.service.engine.start()
        yield
        server.stopping = True
        if server.service is not None:
            await asyncio.to_thread(server.service.engine.stop, False, 10.0)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    for path, method, answer in (
        ("/v1/completions", "POST", server.completions),
        ("/v1/chat/completions", "POST", server.chat),
        ("/v1/embeddings", "POST", server.embeddings),
        ("/v1/models", "GET", server.models),
        ("/v1/models/{name:path}", "GET", server.model),
        ("/health", "GET", server.health),
        ("/metrics", "GET", server.metrics),
    ):
        app.add_route(path, answer, methods=[method])
    metrics = server.service.metrics if server.service is not None else server.embedder.metrics  # type: ignore[union-attr]
    app.add_middleware(Counted, metrics=metrics)
    answer_failures(app, _as_refusal)
    return app


def _as_refusal(problem: Exception) -> Refusal:
    if isinstance(problem, HTTPException):
        return Refusal(problem.status_code, f"{problem.detail}. See /v1/models.", code="not_found")
    return failed(problem)
