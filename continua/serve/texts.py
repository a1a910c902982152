"""The texts of one request: jobs of the engine on one side, an event loop on the other."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from continua.serve.engine import Full
from continua.serve.jobs import Ask, Job, Said
from continua.serve.service import Service
from continua.serve.wire import Refusal, Wanted
from continua.serve.writing import TextWriter

UNFINISHED = ("late", "failed", "cancelled")


@dataclass(frozen=True)
class Piece:
    """Some text of the answer to one prompt; ``finish`` is stop or length at its end."""

    index: int
    text: str
    finish: str | None = None


class Texts:
    """Jobs of one request. ``pieces`` yields text as it comes; without a stream all of it at the end."""

    def __init__(self, service: Service, asks: Sequence[Ask], wanted: Wanted) -> None:
        self.service = service
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[tuple[int, Said]] = asyncio.Queue()
        streams = wanted.streams or bool(wanted.stop)
        self.jobs = [Job(ask, self._teller(i), streams=streams) for i, ask in enumerate(asks)]
        self._writers = [TextWriter(service.served.tokens, wanted.stop) for _ in asks]
        self._streams = streams

    def _teller(self, index: int):  # type: ignore[no-untyped-def]
        def tell(said: Said) -> None:
            try:
                self._loop.call_soon_threadsafe(self._news.put_nowait, (index, said))
            except RuntimeError:  # the loop is closed: nobody listens any more
                return

        return tell

    def submit(self) -> "Texts":
        """Hand all jobs to the engine; none where there is no room for all."""
        for job in self.jobs:
            try:
                self.service.engine.submit(job)
            except Full as full:
                self.cancel()
                wait = max(1, math.ceil(full.seconds))
                words = f"The server is full. Try again in {wait} s."
                raise Refusal(
                    429, words, kind="rate_limit_error", code="queue_full", headers={"Retry-After": str(wait)}
                ) from None
        return self

    def cancel(self) -> None:
        """Nobody waits any more."""
        for job in self.jobs:
            job.cancel()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text as it comes."""
        running = len(self.jobs)
        over = [False] * running
        while running:
            index, said = await self._news.get()
            if over[index]:
                continue
            piece = self._piece(index, said)
            if piece.finish is not None:
                over[index] = True
                running -= 1
            if piece.text or piece.finish is not None:
                yield piece

    def _piece(self, index: int, said: Said) -> Piece:
        job = self.jobs[index]
        writer = self._writers[index]
        if said.finish in UNFINISHED:
            raise _refusal(said)
        if self._streams:
            text = "" if said.token is None or said.finish == "stop" else writer.add([said.token])
        else:
            text = writer.add(job.new[:-1] if said.finish == "stop" else job.new)
        if writer.stopped:
            job.cancel()
            return Piece(index, text, "stop")
        if said.finish is None:
            return Piece(index, text)
        return Piece(index, text + writer.end(), "stop" if writer.stopped else said.finish)

    @property
    def size(self) -> str:
        """The size that writes, or wrote most."""
        return self.jobs[0].main_size

    def loss(self) -> float | None:
        """The mean held-out loss of the sizes that wrote the first text."""
        return self.service.held_out_loss(self.jobs[0].sizes)

    def usage(self) -> dict[str, int]:
        """Tokens that were read and written."""
        read = sum(len(job.ask.ids) for job in self.jobs)
        written = sum(len(job.new) for job in self.jobs)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _refusal(said: Said) -> Refusal:
    if said.finish == "late":
        words = "The deadline cannot be kept any more: the server is busy."
        return Refusal(503, words, kind="server_error", code="deadline_missed", headers={"Retry-After": "1"})
    if said.finish == "cancelled":
        return Refusal(499, "The request was cancelled.", kind="server_error", code="cancelled")
    return Refusal(500, f"The text could not be written: {said.problem[:300]}", kind="server_error", code="failed")
