"""The server behind the page: what it gives, and whom it refuses."""

import concurrent.futures
import http.client
import json
import signal
import time
from pathlib import Path

import pytest

from continua.errors import ConfigError
from continua.studio.app import BODY, HEADERS
from continua.studio.work import settings_of
from tests.studio.conftest import CLIENT, TOKEN, Served

SECRET = "/etc/passwd"


@pytest.mark.spec("B7")
def test_files_come_with_their_kinds_and_what_browsers_shall_forbid(served: Served):
    kinds = {"/": "text/html", "/assets/index.js": "text/javascript", "/ort.wasm": "application/wasm",
             "/bundle.json": "application/json", "/model.onnx": "application/octet-stream"}  # fmt: skip
    for path, kind in kinds.items():
        found = CLIENT.get(f"{served.url}{path}")
        assert found.status_code == 200, path
        assert found.headers["content-type"].startswith(kind)
        for name, value in HEADERS.items():
            assert found.headers[name] == value
    assert "unsafe-inline" not in HEADERS["content-security-policy"]
    assert "'unsafe-eval'" not in HEADERS["content-security-policy"]
    packed = CLIENT.get(f"{served.url}/ort.wasm")
    plain = CLIENT.get(f"{served.url}/ort.wasm", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert json.loads(CLIENT.get(f"{served.url}/bundle.json").content)["live"] is True


def raw(served: Served, path: str, host: str | None = None) -> tuple[int, bytes]:
    """A path exactly as it is written: clients tidy dots away."""
    link = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
    link.putrequest("GET", path, skip_host=True)
    link.putheader("Host", host or f"127.0.0.1:{served.port}")
    link.putheader("Authorization", f"Bearer {TOKEN}")
    link.endheaders()
    found = link.getresponse()
    content = found.read()
    link.close()
    return found.status, content


@pytest.mark.spec("B7")
@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd", "/assets/../../app.py", "//etc/passwd", "/app.py",
        "/%2e%2e/app.py", "/manifest.json", "/page/index.html", "/ort.wasm.gz", "/assets/%00", "/C:\\windows",
        "/api/runs/..%2f..%2fetc", "/api/runs/../../etc/inspect", "/api/compare/a/..%2fb", "/api/runs/%2Fetc/watch",
    ],
)  # fmt: skip
def test_no_path_of_a_client_reaches_the_file_system(served: Served, path: str):
    status, content = raw(served, path)
    assert status in (400, 404), (status, content[:200])
    assert b"root:" not in content
    assert b"import" not in content


@pytest.mark.spec("B7")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80", ""])
def test_foreign_hosts_are_refused(served: Served, host: str):
    status, content = raw(served, "/", host or " ")
    assert status in (400, 421)
    assert b"<html" not in content


@pytest.mark.spec("B7")
def test_foreign_origins_are_refused(served: Served):
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{served.port}", "http://127.0.0.1:1"):
        assert served.post("/api/stop", origin=origin).status_code == 403
        assert served.get("/api/runs", origin=origin).status_code == 403
    given = {"authorization": f"Bearer {TOKEN}"}
    assert CLIENT.post(f"{served.url}/api/stop", json={}, headers=given).status_code == 403
    assert served.post("/api/stop").status_code == 200


@pytest.mark.spec("B7")
def test_work_and_runs_need_the_token(served: Served):
    for token in ("", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer ü"):
        for path in ("/api/runs", "/api/recipes", "/api/runs/current/watch", "/api/compare/a/b"):
            found = CLIENT.get(f"{served.url}{path}", headers={"authorization": token.encode()})
            assert found.status_code == 401, (path, token)
        for path in ("/api/fit", "/api/stop", "/api/runs/a/resume"):
            found = CLIENT.post(
                f"{served.url}{path}", json={}, headers={"authorization": token.encode(), "origin": served.url}
            )
            assert found.status_code == 401, (path, token)
    assert CLIENT.get(f"{served.url}/?token={TOKEN}").status_code == 200
    assert CLIENT.get(f"{served.url}/api/runs?token={TOKEN}").status_code == 401, "a token in a query is none"
    assert served.behind.work.current is None


@pytest.mark.spec("B7")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "recipe"),
        ({"recipe": "../../evil.py:run"}, "shipped"),
        ({"recipe": "evil.py:run"}, "shipped"),
        ({"recipe": "text", "settings": {"text": SECRET}}, "numbers alone"),
        ({"recipe": "text", "settings": {"no_such": 1}}, "no such setting"),
        ({"recipe": "text", "settings": {"steps": ["1"]}}, "numbers alone"),
        ({"recipe": "text", "settings": {f"x{i}": 1 for i in range(99)}}, "settings can be changed"),
        ({"recipe": "text", "settings": []}, "settings"),
    ],
)
def test_wishes_that_are_not_for_a_page_are_refused(served: Served, body: object, words: str):
    found = served.post("/api/fit", body)
    assert found.status_code == 400
    assert words in found.json()["error"]["message"]
    assert served.behind.work.current is None


@pytest.mark.spec("B7")
def test_bodies_are_bounded(served: Served):
    found = served.post("/api/fit", {"recipe": "x" * (BODY + 1)})
    assert found.status_code == 413
    given = {"authorization": f"Bearer {TOKEN}", "origin": served.url}
    assert CLIENT.post(f"{served.url}/api/fit", content=b"{", headers=given).status_code == 400


@pytest.mark.spec("B7")
def test_settings_are_words_of_the_command():
    assert settings_of("text", {"steps": 5, "compile": True}) == ["--set", "steps=5", "--set", "compile=true"]
    with pytest.raises(ConfigError):
        settings_of("text", {"text": "/x"})


@pytest.mark.spec("B7")
def test_a_thousand_requests_at_once(served: Served):
    """Many kinds at once: every one of them is answered, and the server goes on."""
    paths = ["/", "/bundle.json", "/assets/index.js", "/nothing", "/api/runs", "/api/recipes", "/model.onnx"]

    def ask(number: int) -> tuple[str, int]:
        path = paths[number % len(paths)]
        return path, raw(served, path)[0]

    with concurrent.futures.ThreadPoolExecutor(64) as many:
        found = list(many.map(ask, range(1000)))
    assert len(found) == 1000
    assert all(status == (404 if path == "/nothing" else 200) for path, status in found)
    assert CLIENT.get(served.url).status_code == 200


@pytest.mark.spec("B7")
@pytest.mark.slow(reason="two real fits in processes of their own")
def test_a_fit_is_started_watched_stopped_resumed_inspected_and_compared(served: Served):
    small = {"d": 8, "heads": 2, "depth": 1, "context": 16, "batch": 4, "evaluate_every": 5, "save_every": 5}
    found = served.post("/api/fit", {"recipe": "text", "settings": {**small, "steps": 100000}})
    assert found.status_code == 202, found.text
    assert "continua fit text" in found.json()["current"]["command"]
    assert served.post("/api/fit", {"recipe": "text"}).status_code == 400, "one at a time"
    beats = 0
    ends = 0
    given = {"authorization": f"Bearer {TOKEN}"}
    while served.behind.work.current is not None and not (served.behind.work.current.run / "metrics.jsonl").is_file():
        assert served.behind.work.is_busy, served.behind.work.current.tail()
        time.sleep(0.1)
    with CLIENT.stream("GET", f"{served.url}/api/runs/current/watch", headers=given, timeout=120) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: ["):
                beats += len(json.loads(line[6:]))
            if beats > 20 and served.behind.work.is_busy:
                assert served.post("/api/stop").json()["stopped"] is True
                beats = -(10**9)
            ends += line == "event: end"
    assert ends == 1
    current = served.behind.work.current
    assert current is not None
    assert current.child.wait(60) == 130, current.tail()
    (line,) = served.get("/api/runs").json()["runs"]
    assert line["state"] == "stopped"
    assert line["name"] == "text-1"
    told = served.get(f"/api/runs/{line['id']}").json()
    assert told["changes"]["d"] == 8
    assert len(told["curve"]) > 10
    assert served.post(f"/api/runs/{line['id']}/resume").status_code == 202
    time.sleep(8)
    served.post("/api/stop")
    assert served.behind.work.current.child.wait(60) in (130, -signal.SIGINT)
    again = served.get(f"/api/runs/{line['id']}").json()
    assert again["line"]["done"] >= told["line"]["done"]
    assert served.post("/api/fit", {"recipe": "text", "settings": {**small, "steps": 6, "d": 12}}).status_code == 202
    assert served.behind.work.current.child.wait(120) == 0, served.behind.work.current.tail()
    ids = {one["name"]: one["id"] for one in served.get("/api/runs").json()["runs"]}
    both = served.get(f"/api/compare/{ids['text-1']}/{ids['text-2']}").json()
    assert ["changes.d", "8", "12"] in both["differences"]
    text = served.get(f"/api/runs/{ids['text-2']}/inspect").json()["text"]
    assert "discretisation" in text
    assert "history" in text
    assert Path(SECRET).name not in text
