"""One tiny elastic model, its page and a server of it for all tests here."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import continua as ct
from continua.data.corpus import Corpus
from continua.data.tokens import Characters
from continua.lab import pareto
from continua.models import zoo
from continua.serve.gate import Gate
from continua.serve.start import bound, running
from continua.studio.app import BODY, Behind, studio_application
from continua.studio.bundle import MODEL, Bundle, Sizes, bundle_of, write_model
from continua.studio.live import Runs
from continua.studio.work import Work
from continua.tasks import Text
from continua.training import Elastic
from tests.exact import stirred

TEXT = Path(__file__).read_text(encoding="utf-8")
TOKENS = Characters.of(TEXT + "def ")
CONTEXT = 48
TOKEN = "a token of the tests"
CLIENT = httpx.Client(timeout=120)


@pytest.fixture(scope="session")
def model() -> Any:
    torch.manual_seed(0)
    made = ct.elastic(zoo.gpt2(vocab=TOKENS.size, d=16, heads=4, depth=4, context=CONTEXT)).eval()
    return stirred(made, torch.float32)


@dataclass(frozen=True)
class Made:
    """A bundle and the file of its model."""

    bundle: Bundle
    file: Path


@pytest.fixture(scope="session")
def made(model: ct.Transformer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    file = tmp_path_factory.mktemp("studio") / MODEL
    about = write_model(model, TOKENS, file)
    ids = TOKENS.encode(TEXT)
    task = Text(Corpus("this file", TEXT, TEXT[:400]), TOKENS, context=CONTEXT, batch=2, limit=4)
    wishes = [model.native, ct.at(d=8), ct.at(d=8, h=2, z=2), ct.at(d=12, h=3, z=3)]
    drew = Elastic().over(model).drew
    table = pareto(model, task, wishes, drew)
    windows = ids[: 2 * CONTEXT].reshape(2, CONTEXT)
    bundle = bundle_of("tiny", model, about, Sizes(table, drew), windows)
    return Made(replace(bundle, model_bytes=file.stat().st_size), file)


@dataclass(frozen=True)
class Served:
    """A studio on loopback."""

    behind: Behind
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        return CLIENT.get(f"{self.url}{path}", headers={"authorization": f"Bearer {TOKEN}", **headers})

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {TOKEN}", "origin": self.url, **headers}
        return CLIENT.post(f"{self.url}{path}", json={} if body is None else body, headers=given)


@pytest.fixture(scope="session")
def served(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("runs")
    listens: socket.socket = bound("127.0.0.1", 0)
    port = listens.getsockname()[1]
    behind = Behind(replace(made.bundle, live=True), made.file, Runs(home), Work(home), Gate(TOKEN, body=BODY))
    web = running(studio_application(behind, port), grace=2)
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listens]}, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield Served(behind, port)
    CLIENT.close()
    web.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
