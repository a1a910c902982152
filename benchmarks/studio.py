"""The studio in a real browser: how soon it shows something and the model is ready, what it weighs, frames a second.

    continua demo
    python benchmarks/studio.py --run runs/demo     # a minute; --rounds 1 for a quick look

The browser is chromium without a screen, drawing without a graphics card. The page is served from loopback by
``continua studio`` itself, as an application of this process. Times are wall-clock times of a machine that may do other
things: the load average stands beside them.
"""

import argparse
import contextlib
import gzip
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import Row, environment, estimate, row, write
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from continua.cli.studio import prepared  # noqa: E402
from continua.devices import find_device  # noqa: E402
from continua.serve.gate import Gate  # noqa: E402
from continua.serve.start import bound, running  # noqa: E402
from continua.studio.app import Behind, studio_application  # noqa: E402
from continua.studio.live import Runs  # noqa: E402
from continua.studio.page import page_files  # noqa: E402
from continua.studio.work import Work  # noqa: E402
from tools.browser import chromium  # noqa: E402

PAINT = """() => {
  const look = () => {
    if (document.querySelector('.panel') === null) requestAnimationFrame(look);
    else requestAnimationFrame((now) => { globalThis.painted = now; });
  };
  requestAnimationFrame(look);
}"""  # the first frame behind the one in which the scene is there: more than a heading
READY = "async () => { await studio.model(); return performance.now(); }"
FRAMES = """(seconds) => new Promise((done) => {
  let count = 0;
  const began = performance.now();
  const frame = (now) => {
    count += 1;
    if (now - began > 1000 * seconds) done((1000 * count) / (now - began));
    else requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""
TOKEN = """async ({d, h, z}) => {
  const model = await studio.model();
  const decoder = model.decoder({d, h, z});
  await decoder.read(model.tokens.encode(studio.bundle.prompt));
  const times = [];
  for (let i = 0; i < 40; i += 1) {
    const began = performance.now();
    await decoder.read([1]);
    times.push(performance.now() - began);
  }
  return times.sort((a, b) => a - b)[20];
}"""


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The studio of a run on loopback."""
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model.onnx"
        bundle = prepared(Console(stderr=True), run, model, find_device("cpu"))
        listens: socket.socket = bound("127.0.0.1", 0)
        port = listens.getsockname()[1]
        home = Path(place)
        web = running(studio_application(Behind(bundle, model, Runs(home), Work(home), Gate("x")), port), 2)
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listens]}, daemon=True)
        thread.start()
        while not web.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
        web.should_exit = True
        thread.join(10)


def opened(browser: Any, url: str) -> tuple[float, float]:
    """Seconds to the first paint and to a model that is ready, in a browser that has nothing of it."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(f"({PAINT})()")
    page.goto(url)
    page.wait_for_selector("nav a")
    ready = page.evaluate(READY)
    paint = page.evaluate("painted")
    context.close()
    return paint / 1e3, ready / 1e3


def processor_seconds() -> float:
    """What all processes below this one have used so far; only Linux says so."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parts = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            number = int(stat.parent.name)
            parents[number] = int(parts[1])
            used[number] = (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def is_below(number: int) -> bool:
        while number in parents:
            number = parents[number]
            if number == os.getpid():
                return True
        return False

    return sum(seconds for number, seconds in used.items() if is_below(number))


def rates(browser: Any, url: str, rounds: int) -> Iterator[Row]:
    for where in ("circle", "sphere"):
        page = browser.new_page()
        page.goto(f"{url}/?scene=particles&on={where}&n=2000")
        page.wait_for_selector("canvas.stage")
        page.wait_for_timeout(2000)
        seen = []
        spent = []
        for _ in range(rounds):
            before = processor_seconds()
            began = time.perf_counter()
            seen.append(page.evaluate(FRAMES, 2))
            spent.append(1e3 * (processor_seconds() - before) / (seen[-1] * (time.perf_counter() - began)))
        found = estimate(seen)
        name = f"processor time of a frame, all processes of the browser, {where}"
        yield row(name, estimate(spent), unit="ms", note="two cores have 67 ms for each of 30 frames a second")
        yield row(f"frames a second, 2,000 particles on the {where}", found, target="≥ 30", held=found.median >= 30)
        page.close()


def tokens(browser: Any, url: str) -> Iterator[Row]:
    page = browser.new_page()
    page.goto(url)
    page.wait_for_selector("nav a")
    native = page.evaluate("studio.bundle.about.native")
    for name, size in (("native", native), ("half of all", {k: native[k] // 2 for k in "dhz"})):
        took = page.evaluate(TOKEN, {k: size[k] for k in "dhz"})
        yield Row(f"milliseconds a token in the page, {name}", took, unit="ms")
    page.close()


def weights() -> Iterator[Row]:
    files = page_files()
    own = [one for name, one in files.items() if name.endswith((".js", ".css", ".html", ".svg"))]
    size = sum(len(gzip.compress(one.content(), 9)) for one in own) / 1e3
    yield Row("the page without model and runtime, compressed", size, unit="kB", target="≤ 400", held=size <= 400)
    yield Row("the runtime of ONNX, compressed", len(files["ort.wasm"].kept) / 1e6, unit="MB")
    operator = len(files["burgers.onnx"].kept) / 1e6
    yield Row("the operator of Burgers' equation", operator, unit="MB", target="≤ 3", held=operator <= 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"))
    parser.add_argument("--rounds", type=int, default=7)
    wish = parser.parse_args()
    rows = list(weights())
    with served(wish.run) as url, chromium() as browser:
        times = [opened(browser, url) for _ in range(wish.rounds)]
        for name, column, most in (("the scene is painted", 0, 1.5), ("the model is ready", 1, 6.0)):
            values = [each[column] for each in times]
            found = estimate(values)
            rows.append(row(f"seconds until {name}", found, unit="s", target=f"≤ {most:g}", held=found.median <= most))
        rows += [*rates(browser, url, wish.rounds), *tokens(browser, url)]
    for each in rows:
        print(f"{each.name:60s} {each.shown:30s} {each.target} {each.verdict}")
    print(f"written: {write('studio', rows, environment=environment())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
