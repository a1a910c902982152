"""One tiny model and one server of it for all tests here."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import torch

import continua as ct
from continua.data.tokens import Characters
from continua.models import zoo
from continua.serve import Limits
from continua.serve.app import Gate, Server
from continua.serve.service import Rules, Served, Service, size_name
from continua.serve.start import bound, web_server
from tests.exact import stirred

ALPHABET = "\n !abcdefghijklmnopqrstuvwxyz{}:"
CONTEXT = 48
KEY = "a key of the tests"


def tiny() -> ct.Transformer:
    torch.manual_seed(0)
    made = zoo.gpt2(vocab=len(ALPHABET), d=16, heads=4, depth=4, context=CONTEXT)
    model = ct.elastic(made).eval().double()
    stirred(model)
    return model


def losses(model: ct.Transformer) -> dict[str, Any]:
    """As a Pareto table would have them."""
    sizes = ({"d": 16}, {"d": 8}, {"z": 2}, {"d": 8, "h": 2, "z": 1})
    chosen = [model.settle(ct.at(**size)) for size in sizes]
    return {size_name(at): (at, 1.0 + 0.1 * i) for i, at in enumerate(chosen)}


@pytest.fixture(scope="session")
def model() -> ct.Transformer:
    return tiny()


@pytest.fixture(scope="session")
def served(model: ct.Transformer) -> Served:
    end = (ALPHABET.index("!"),)
    return Served("tiny", model, Characters(ALPHABET), end, None, losses(model))


@dataclass(frozen=True)
class Running:
    """A server on loopback."""

    service: Service
    url: str

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=60)

    def post(self, path: str, **rest: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}", **rest.pop("headers", {})}
        return httpx.post(f"{self.url}{path}", headers=headers, timeout=60, **rest)


def running(server: Server) -> tuple[Any, str, threading.Thread]:
    listens: socket.socket = bound("127.0.0.1", 0)
    web = web_server(server, grace=5)
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listens]}, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    return web, f"http://127.0.0.1:{listens.getsockname()[1]}", thread


@pytest.fixture(scope="session")
def server(served: Served) -> Iterator[Running]:
    service = Service(served, Limits(batch=4, queue=32), Rules(prompts=4))
    web, url, thread = running(Server(service, None, Gate(KEY, body=20_000, seconds=1.0)))
    yield Running(service, url)
    web.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


__all__ = ["Running", "losses", "running", "tiny"]
