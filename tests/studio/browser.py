"""A real browser for tests; without one they say so."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tools.browser import chromium, executable


class Browser:
    """Opens pages, each in surroundings of its own, and fails where one of them complains."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium
        self.contexts: list[Any] = []
        self.known: list[str] = []
        self.keeping = ""

    def page(self, url: str, width: int = 1280, theme: str = "light", still: bool = False) -> Any:
        """A page; the one before is closed."""
        self.close()
        if url != self.keeping:
            self.keeping = ""
        context = self.chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce" if still else "no-preference",
        )
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self.complaints.append(f"{request.failure}: {request.url}"))
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        page.goto(url)
        page.wait_for_selector("nav a")
        return page

    def kept(self, url: str) -> Any:
        """A page that stays open for tests that compute in it and look at nothing."""
        if not self.contexts or self.keeping != url:
            self.keeping = url
            return self.page(url)
        return self.contexts[-1].pages[0]

    def scenes(self, url: str) -> list[str]:
        """The names of all scenes."""
        if not self.known:
            links = self.page(url).eval_on_selector_all("nav a", "all => all.map((one) => one.getAttribute('href'))")
            self.known = [link.partition("scene=")[2] for link in links]
        return self.known

    def close(self) -> None:
        """Close what is open; complaints are failures."""
        while self.contexts:
            self.contexts.pop().close()
            usual = ("icon.svg", "DISCONNECTED", "ABORTED")  # cut off by a test, or by the page itself
            serious = [words for words in self.complaints if not any(word in words for word in usual)]
            assert not serious, serious


@contextmanager
def opened() -> Iterator[Browser]:
    """The browser; tests are skipped where there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
    if executable() is None:
        pytest.skip("no browser here: install chromium, or name one by CONTINUA_BROWSER")
    with chromium() as found:
        one = Browser(found)
        yield one
        one.close()


def until(page: Any, wanted: str, seconds: float = 60.0) -> None:
    """Wait for a condition; the page forbids playwright's own way, which evaluates text inside of it."""
    end = time.monotonic() + seconds
    while not page.evaluate(wanted):
        assert time.monotonic() < end, (
            f"{wanted} did not come true; problems: {page.locator('.problem').all_inner_texts()}"
        )
        page.wait_for_timeout(50)
