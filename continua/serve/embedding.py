"""Embeddings of texts: the mean of an encoder's last states, of length one."""

import asyncio
import base64
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from continua.errors import ContinuaError
from continua.models import Batch
from continua.serve.metrics import Metrics
from continua.serve.service import FAST, NATIVE, Served, _check_not_larger, size_name, typed
from continua.serve.wire import Refusal, texts_of
from continua.tasks.sentences import pooled
from continua.typing import Tensor

MOST = 256  # texts in one request
WAITING = 64  # requests that may wait


class Embedder:
    """An encoder behind a server. One thread at a time runs it."""

    def __init__(self, served: Served, context: int = 512) -> None:
        self.served = served
        self.metrics = Metrics()
        room = served.model.flows[-1].embed.room
        self.context = context if room is None else min(room, context)
        self._lock = threading.Lock()
        self._waiting = 0

    async def answer(self, said: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """OpenAI's answer, and the size that gave it."""
        where = self._size(said.get("model"))
        form = said.get("encoding_format", "float")
        if form not in ("float", "base64"):
            raise Refusal(400, "encoding_format is float or base64.", param="encoding_format")
        if said.get("dimensions") is not None:
            words = f"dimensions is not served. Name a size: {self.served.name}:d=…"
            raise Refusal(400, words, param="dimensions", code="unsupported")
        texts = [self._ids(text) for text in texts_of(said.get("input"), "input", MOST)]
        if self._waiting >= WAITING:
            words = "The server is full. Try again in a second."
            raise Refusal(429, words, kind="rate_limit_error", code="queue_full", headers={"Retry-After": "1"})
        self._waiting += 1
        try:
            vectors = await asyncio.to_thread(self.embed, texts, where)
        finally:
            self._waiting -= 1
        count = sum(map(len, texts))
        data = [{"object": "embedding", "index": i, "embedding": _shown(v, form)} for i, v in enumerate(vectors)]
        size = size_name(where)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": f"{self.served.name}:{size}", "usage": usage}, size

    @torch.no_grad()
    def embed(self, texts: Sequence[Sequence[int]], where: Any) -> Tensor:
        """Token numbers to vectors [b, d]."""
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        observed = torch.arange(longest) < torch.tensor([[len(text)] for text in texts])
        with self._lock:
            states = self.served.model.states(Batch(ids, observed=observed), at=where).final
        return torch.nn.functional.normalize(pooled(states, observed), dim=-1)

    def _size(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise Refusal(400, "model is a text.", param="model")
        own, _, wish = name.partition(":")
        model = self.served.model
        try:
            if own != self.served.name:
                raise Refusal(404, f"There is no model {name[:80]!r}.", param="model", code="model_not_found")
            if wish in ("", NATIVE, FAST, "auto"):
                return model.native
            chosen = model.settle(typed(wish))
            _check_not_larger(chosen, model)
            model.structure(chosen)
        except ContinuaError as problem:
            raise Refusal(404, f"There is no such size: {problem}", param="model", code="model_not_found") from None
        return chosen

    def _ids(self, text: str | list[int]) -> list[int]:
        try:
            ids = self.served.tokens.encode(text).tolist() if isinstance(text, str) else text
        except (ContinuaError, UnicodeError, TypeError) as problem:
            raise Refusal(400, f"The text cannot be read: {str(problem)[:300]}", param="input") from None
        if not ids or len(ids) > self.context:
            words = f"A text has 1 to {self.context} tokens, got {len(ids)}."
            raise Refusal(400, words, param="input", code="context_length_exceeded")
        if max(ids) >= self.served.tokens.size:
            raise Refusal(400, f"Tokens are numbers from 0 to {self.served.tokens.size - 1}.", param="input")
        return ids


def _shown(vector: Tensor, form: str) -> Any:
    if form == "float":
        return vector.tolist()
    return base64.b64encode(vector.float().numpy().tobytes()).decode()
