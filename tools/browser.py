"""A real browser for tests, films and measurements: Debian's chromium, or what CONTINUA_BROWSER names."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOFTWARE = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
            "--ignore-gpu-blocklist", "--mute-audio"]  # fmt: skip


def executable() -> str | None:
    """Where the browser of this machine is."""
    named = os.environ.get("CONTINUA_BROWSER")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, drawing without a graphics card."""
    from playwright.sync_api import sync_playwright

    place = executable()
    if place is None:
        raise SystemExit("There is no browser here. Install chromium, or name one by CONTINUA_BROWSER.")
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=place, args=SOFTWARE)
        yield made
        made.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a word."""

    def log_message(self, *words: Any) -> None:
        return


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """A static host of a folder, on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
