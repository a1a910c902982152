"""The server (B13): the official client works against it unchanged, and nothing that comes over the wire ends it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import torch

import continua as ct
from continua.convert.chat import ChatTemplate
from continua.data.tokens import Characters
from continua.models import zoo
from continua.serve import Limits
from continua.serve.app import Gate, Server
from continua.serve.embedding import Embedder
from continua.serve.service import Rules, Served, Service
from continua.serve.start import bound, check_open
from continua.serve.writing import TextWriter
from tests.refusals import refused
from tests.serve.conftest import ALPHABET, CONTEXT, KEY, Running, running

TOKENS = Characters(ALPHABET)
PROMPT = "abc de"


def alone(model: ct.Transformer, prompt: str = PROMPT, tokens: int = 12, **sizes: int) -> str:
    """What the library writes, up to the token that ends a text."""
    ids = TOKENS.encode(prompt)[None]
    text = TOKENS.decode(ct.generate(model.at(**sizes), ids, tokens=tokens)[0, ids.shape[1] :])
    return text.partition("!")[0]


# --- the official client ----------------------------------------------------------------------------------------------


@pytest.mark.spec("B13")
def test_completions_are_what_the_library_writes(server: Running, model: ct.Transformer) -> None:
    client = server.client
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.choices[0].text == alone(model)
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.system_fingerprint == "continua:d=16,h=4,z=4"
    several = client.completions.create(model="tiny", prompt=[PROMPT, "xyz", "a"], max_tokens=9, temperature=0)
    assert [choice.text for choice in several.choices] == [alone(model, text, 9) for text in (PROMPT, "xyz", "a")]
    numbers = client.completions.create(
        model="tiny", prompt=TOKENS.encode(PROMPT).tolist(), max_tokens=12, temperature=0
    )
    assert numbers.choices[0].text == answer.choices[0].text
    drawn = [client.completions.create(model="tiny", prompt=PROMPT, max_tokens=9, seed=7).choices[0].text for _ in "12"]
    assert drawn[0] == drawn[1]


@pytest.mark.spec("B13")
def test_streams_say_the_same_in_pieces(server: Running, model: ct.Transformer) -> None:
    client = server.client
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": True}
    pieces = list(client.completions.create(**asked, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == alone(model)
    assert pieces[-1].usage.completion_tokens >= len(alone(model))
    assert pieces[-2].choices[0].finish_reason in ("stop", "length")
    messages = [{"role": "system", "content": "abc"}, {"role": "user", "content": "de"}]
    talk: dict[str, Any] = {"model": "tiny", "messages": messages, "temperature": 0}
    chat = list(client.chat.completions.create(**talk, max_tokens=8, stream=True))
    assert chat[0].choices[0].delta.role == "assistant"
    said = "".join(piece.choices[0].delta.content or "" for piece in chat)
    assert said == alone(model, "abc\nde", 8)
    whole = client.chat.completions.create(**talk, max_completion_tokens=8)
    assert whole.choices[0].message.content == said


@pytest.mark.spec("B13")
@pytest.mark.parametrize(
    ("name", "sizes"), [("tiny:d=8", {"d": 8}), ("tiny:d=12,h=2,z=3", {"d": 12, "h": 2, "z": 3}), ("tiny:native", {})]
)
def test_a_name_pins_the_size_and_the_reply_names_it(
    server: Running, model: ct.Transformer, name: str, sizes: dict[str, int]
) -> None:
    raw = server.client.completions.with_raw_response.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
    answer = raw.parse()
    assert ("x-continua-loss" in raw.headers) == (name != "tiny:d=12,h=2,z=3"), "known for sizes that were measured"
    assert answer.choices[0].text == alone(model, **sizes)
    full = {"d": 16, "h": 4, "z": 4} | sizes
    assert raw.headers["x-continua-size"] == ",".join(f"{k}={n}" for k, n in full.items())
    assert answer.system_fingerprint == f"continua:{raw.headers['x-continua-size']}"


@pytest.mark.spec("B13")
def test_models_lists_the_sizes_and_fast_is_one_of_them(server: Running) -> None:
    client = server.client
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["tiny", "tiny:fast"]
    assert "tiny:d=16,h=4,z=4" in names
    assert client.models.retrieve("tiny:fast").id == "tiny:fast"
    fast = client.completions.create(model="tiny:fast", prompt="a", max_tokens=2)
    assert fast.system_fingerprint == f"continua:{server.service.front.fastest.name}"
    own = client.completions.create(model="tiny:d=16,m=8", prompt="a", max_tokens=2)
    assert own.system_fingerprint == "continua:d=16,h=4,z=4,m=8", "not the native size: m does not follow d"
    patient = client.completions.create(model="tiny", prompt="a", max_tokens=2, extra_body={"latency_ms": 60_000})
    assert patient.system_fingerprint == "continua:d=16,h=4,z=4"


@pytest.mark.spec("B13")
def test_stop_texts_end_an_answer_and_are_no_part_of_it(server: Running, model: ct.Transformer) -> None:
    text = alone(model)
    assert len(text) > 4
    stop = text[2:4]
    for stream in (False, True):
        asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stop": [stop]}
        answer = server.client.completions.create(**asked, stream=stream)
        got = "".join(piece.choices[0].text for piece in answer) if stream else answer.choices[0].text
        assert got == text[: text.index(stop)]


# --- what is wrong ----------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "other"}, 404, "model", "no model 'other'"),
    ({"model": "tiny:d=17"}, 404, "model", "'d=17': a size is at most the native one, got d=17, where it has 16"),
    ({"model": "tiny:z=9"}, 404, "model", "got z=9, more than twice its steps"),
    ({"model": "tiny:q=3"}, 404, "model", "a size is written"),
    ({"model": 3}, 400, "model", "model is a text, got 3"),
    ({"prompt": None}, 400, "prompt", "prompt is a text"),
    ({"prompt": ""}, 400, "prompt", "at least one token"),
    ({"prompt": "abc%"}, 400, "prompt", "does not know this character, got '%'"),
    ({"prompt": "\ud800"}, 400, "prompt", "cannot be read"),
    ({"prompt": ["a"] * 5}, 400, "prompt", "up to 4 texts, got 5"),
    ({"prompt": [3, 400]}, 400, "prompt", f"numbers from 0 to {len(ALPHABET) - 1}"),
    ({"prompt": "a" * (CONTEXT + 1)}, 400, "prompt", f"reads {CONTEXT} tokens at most, the prompt has {CONTEXT + 1}"),
    ({"prompt": "a" * 4000}, 400, "prompt", "Shorten the prompt"),
    ({"max_tokens": CONTEXT}, 400, "max_tokens", "leaves room for 46 new ones"),
    ({"max_tokens": 0}, 400, "max_tokens", "whole number from 1"),
    ({"max_tokens": True}, 400, "max_tokens", "whole number from 1"),
    ({"temperature": -1}, 400, "temperature", "a number from 0 to 2, got -1"),
    ({"temperature": "warm"}, 400, "temperature", "got warm"),
    ({"top_p": 1.5}, 400, "top_p", "from 0 to 1"),
    ({"stop": ["a"] * 5}, 400, "stop", "up to four"),
    ({"stream": "yes"}, 400, "stream", "true or false"),
    ({"stream_options": {}}, 400, "stream_options", "beside stream=true"),
    ({"n": 2}, 400, "n", "n is not served here"),
    ({"logit_bias": {"3": 1}}, 400, "logit_bias", "not served"),
    ({"temprature": 1}, 400, "temprature", "Did you mean 'temperature'?"),
    ({"latency_ms": 0.001}, 400, "latency_ms", "No size writes 2 tokens within 0 ms"),
    ({"latency_ms": -1}, 400, "latency_ms", "number from 0"),
]


def head_of(length: int) -> bytes:
    """The head of a request, for those who write the rest by hand."""
    key = f"authorization: Bearer {KEY}"
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{key}\r\ncontent-length: {length}\r\n\r\n".encode()


def is_well(server: Running) -> bool:
    return server.post("/v1/completions", json=GOOD).status_code == 200


@pytest.mark.spec("B13")
@pytest.mark.parametrize(("change", "status", "param", "words"), BAD, ids=[str(bad[0])[:40] for bad in BAD])
def test_bad_fields_are_named(server: Running, change: dict[str, Any], status: int, param: str, words: str) -> None:
    answer = server.post("/v1/completions", content=json.dumps({**GOOD, **change}))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.spec("B13")
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"[" * 19_000, 400, "not JSON"),
        (b'"text"', 400, "a JSON object"),
        (b'{"model": "\xff"}', 400, "not UTF-8"),
        (b" " * 30_000, 413, "20000 bytes at most"),
    ],
    ids=["empty", "torn", "deep", "no object", "not UTF-8", "long"],
)
def test_bodies_that_cannot_be_read(server: Running, body: bytes, status: int, words: str) -> None:
    answer = server.post("/v1/completions", content=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


@pytest.mark.spec("B13")
def test_messages_and_paths_that_nobody_knows(server: Running) -> None:
    for messages in (None, [], [{"role": "user"}], [{"content": "a"}], ["a"], [{"role": "user", "content": [{}]}]):
        answer = server.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
    for path, status in (("/v1/nothing", 404), ("/v1/models", 405), ("/v1/embeddings", 404)):
        answer = server.post(path, json={"model": "tiny", "input": "a"})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


@pytest.mark.spec("B13")
def test_a_hundred_megabytes_and_slow_clients_are_cut_off(server: Running) -> None:
    where = urlsplit(server.url)
    huge = http.client.HTTPConnection(where.hostname, where.port, timeout=20)  # type: ignore[arg-type]
    huge.putrequest("POST", "/v1/completions")
    for name, value in (("authorization", "Bearer a key of the tests"), ("content-length", str(100 * 2**20))):
        huge.putheader(name, value)
    huge.endheaders()
    assert huge.getresponse().status == 413, "before any of it is sent"
    huge.close()
    slow = socket.create_connection((where.hostname, where.port), timeout=20)
    slow.sendall(head_of(99) + b"{")
    assert b" 408 " in slow.recv(4096).split(b"\r\n")[0]
    slow.close()
    assert is_well(server)


@pytest.mark.spec("B13")
def test_a_key_is_asked_for(server: Running) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "a key of the tests x"}):
        for answer in (
            httpx.post(f"{server.url}/v1/completions", json=GOOD, headers=headers),
            httpx.get(f"{server.url}/v1/models", headers=headers),
            httpx.get(f"{server.url}/metrics", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0).models.list()
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


@pytest.mark.spec("B13")
def test_a_client_that_goes_frees_its_place(server: Running) -> None:
    metrics = server.service.metrics
    before = metrics.finishes["cancelled"]
    for stream in (True, False):
        where = urlsplit(server.url)
        line = socket.create_connection((where.hostname, where.port))
        body = json.dumps(
            {"model": "tiny", "prompt": "a", "max_tokens": 40, "temperature": 1, "stream": stream}
        ).encode()
        line.sendall(head_of(len(body)) + body)
        if stream:
            line.recv(100)
        line.close()
    deadline = time.monotonic() + 20
    while metrics.active and time.monotonic() < deadline:
        time.sleep(0.01)
    assert metrics.active == 0
    assert metrics.finishes["cancelled"] >= before
    assert is_well(server)


@pytest.mark.spec("B13")
def test_a_full_queue_is_429_with_a_time_to_come_again(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from continua.serve.engine import Limits

    monkeypatch.setattr(server.service.engine, "limits", Limits(4, 0))
    answer = server.post("/v1/completions", json=GOOD)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "queue_full"
    with pytest.raises(openai.RateLimitError):
        server.client.completions.create(**GOOD)


@pytest.mark.spec("B13")
def test_metrics_are_counted(server: Running) -> None:
    assert is_well(server)
    text = httpx.get(f"{server.url}/metrics", headers={"authorization": "Bearer a key of the tests"}).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['continua_tokens_total{size="d=16,h=4,z=4"}']) > 0
    assert float(lines['continua_answers_total{status="200"}']) > 0


# --- chats ------------------------------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'root' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.spec("B13", "B14")
def test_a_chat_is_written_behind_its_template(served: Served) -> None:
    service = Service(replace(served, template=ChatTemplate(TEMPLATE)), Limits(batch=1, queue=2), Rules())
    web, url, thread = running(Server(service, None, Gate(KEY)))
    client = Running(service, url).client
    said = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=8, temperature=0
    )
    assert said.usage.prompt_tokens == len("user: hi\nassistant:")
    assert said.choices[0].message.content == alone(service.served.model, "user: hi\nassistant:", 8)
    with pytest.raises(openai.BadRequestError, match="no such role"):
        client.chat.completions.create(model="tiny", messages=[{"role": "root", "content": "hi"}])
    web.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def test_text_comes_in_sure_pieces() -> None:
    writer = TextWriter(TOKENS, ("cd",))
    assert [writer.add([ALPHABET.index(letter)]) for letter in "abcxcd"] == ["a", "b", "", "cx", "", ""]
    assert writer.stopped
    held = TextWriter(TOKENS, ("cd",))
    assert held.add(TOKENS.encode("abc").tolist()) + held.end() == "abc"


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B13")
def test_an_encoder_embeds() -> None:
    torch.manual_seed(0)
    model = zoo.bert(vocab=len(ALPHABET), d=16, heads=2, depth=2, context=24).eval()
    served = Served("encoder", model, TOKENS)
    assert not served.writes
    web, url, thread = running(Server(None, Embedder(served), Gate()))
    try:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        texts = ["abc", "a much longer text"]
        found = client.embeddings.create(model="encoder", input=texts)
        for text, each in zip(texts, found.data, strict=True):
            with torch.no_grad():
                mean = model.states(TOKENS.encode(text)[None]).final.mean(1)[0]
            assert torch.allclose(torch.tensor(each.embedding), mean / mean.norm(), atol=1e-5)
        floats = httpx.post(f"{url}/v1/embeddings", json={"model": "encoder", "input": "abc"}).json()
        assert floats["data"][0]["embedding"] == pytest.approx(found.data[0].embedding, abs=1e-5)
        for bad in ({"input": ""}, {"input": "a" * 99}, {"model": "x"}, {"dimensions": 3}, {"encoding_format": "int"}):
            answer = httpx.post(f"{url}/v1/embeddings", json={"model": "encoder", "input": "abc", **bad})
            assert answer.status_code in (400, 404)
            assert answer.json()["error"]["param"] in bad
        assert httpx.post(f"{url}/v1/completions", json=GOOD).status_code == 404
    finally:
        web.should_exit = True
        thread.join(10)


# --- start and end ----------------------------------------------------------------------------------------------------


def test_beyond_loopback_a_key_is_needed_and_a_taken_port_is_said() -> None:
    check_open("127.0.0.1", None)
    check_open("::1", None)
    check_open("0.0.0.0", "key")
    with refused(ct.errors.ConfigError, "needs an API key, got --host 0.0.0.0 and none", "CONTINUA_API_KEY"):
        check_open("0.0.0.0", None)
    taken = bound("127.0.0.1", 0)
    taken.listen()
    with refused(ct.errors.ConfigError, "the port cannot be listened to", "--port 8001"):
        bound("127.0.0.1", taken.getsockname()[1])
    taken.close()


@pytest.mark.slow(reason="a process of its own, which imports torch")
@pytest.mark.spec("B13")
def test_the_command_serves_a_folder_and_ends_gracefully(model: ct.Transformer, tmp_path: Path) -> None:
    from continua.convert.tokenizer import write_tokeniser

    model.save(tmp_path / "kept")
    write_tokeniser(TOKENS, tmp_path / "kept", CONTEXT)
    words = [sys.executable, "-m", "continua", "serve", str(tmp_path / "kept"), "--port", "0", "--batch", "2"]
    shown = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=shown) as job:
        assert job.stderr is not None
        line = next(line for line in job.stderr if "serving" in line)
        url = line.split(" at ")[1].split("/v1")[0]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            stream = client.completions.create(model="kept", prompt="abc", max_tokens=30, temperature=0, stream=True)
            first = next(iter(stream)).choices[0].text
            job.send_signal(signal.SIGTERM)
            rest = "".join(piece.choices[0].text for piece in stream)
        assert first + rest == alone(model, "abc", 30)
        assert job.wait(30) == 0
