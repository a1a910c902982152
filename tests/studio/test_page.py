"""The page in a real browser: its arithmetic against torch, its scenes, addresses and manners."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.studio.page import write_page
from tests.studio.browser import Browser, hosted, opened, until
from tests.studio.conftest import TOKEN, TOKENS, Made, Served

pytestmark = [pytest.mark.page, pytest.mark.spec("B7")]

SIZES = [(16, 4, 4), (8, 4, 4), (16, 2, 4), (16, 4, 2), (8, 2, 2), (10, 3, 3), (2, 1, 1), (13, 3, 4), (16, 4, 1)]
TORCH = 1e-4


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as one:
        yield one


LOGITS = """async ({d, h, z, ids}) => {
  const model = await studio.model();
  const rows = await model.decoder({d, h, z}).read(ids, ids.map((_, i) => i));
  return rows.map((row) => [...row]);
}"""


def test_logits_are_those_of_torch_at_many_sizes(browser: Browser, served: Served, model: Any):
    page = browser.page(served.url)
    ids = TOKENS.encode("def tiny() -> page:\n    return").tolist()
    for d, h, z in SIZES:
        found = torch.tensor(page.evaluate(LOGITS, {"d": d, "h": h, "z": z, "ids": ids}))
        with torch.no_grad():
            wanted = model.at(d=d, h=h, z=z)(torch.tensor([ids]))[0]
        assert float((found - wanted).abs().max()) < TORCH * max(1.0, float(wanted.abs().max())), (d, h, z)


def test_greedy_text_is_that_of_generate(browser: Browser, served: Served, model: Any):
    page = browser.page(f"{served.url}/?scene=sizes&heat=0&prompt=def%20")
    for d, h, z in SIZES[:6]:
        page.evaluate("wish => studio.address.go('sizes', wish)", {"d": d, "h": h, "z": z, "heat": 0, "prompt": "def "})
        until(page, "document.querySelector('.paper .note').textContent.startsWith('40 of 40')")
        until(page, "document.querySelectorAll('.paper .note')[1].textContent.startsWith('40 of 40')")
        texts = page.eval_on_selector_all(".written", "all => all.map((one) => one.textContent)")
        prompt = TOKENS.encode("def ")[None]
        for text, view in zip(texts, (model.at(d=d, h=h, z=z), model.at()), strict=True):
            wanted = ct.generate(view, prompt, tokens=40)[0]
            assert text == TOKENS.decode(wanted), (d, h, z)


def test_what_is_written_ahead_is_the_native_text(browser: Browser, served: Served, model: Any):
    page = browser.page(f"{served.url}/?scene=sizes&d=8&h=4&z=4&heat=0&prompt=def%20&draft=1")
    until(page, "document.querySelectorAll('.paper .note')[1].textContent.startsWith('40 of 40')")
    whole = "all => all.filter((one) => one.className !== 'rejected').map((one) => one.textContent).join('')"
    text = page.eval_on_selector_all(".paper:nth-child(2) .written > span", whole)
    assert text == TOKENS.decode(ct.generate(model.at(), TOKENS.encode("def ")[None], tokens=40)[0])
    assert page.locator(".written .rejected").count() > 0
    assert "guesses kept" in page.locator(".paper .note").nth(1).inner_text()


def test_sliders_move_the_size_the_dot_and_the_address(browser: Browser, served: Served, made: Made):
    page = browser.page(f"{served.url}/?scene=sizes&d=16&h=4&z=4")
    page.wait_for_selector(".now .dot")
    before = page.locator(".now .dot").get_attribute("cx")
    slider = page.get_by_label("Width d")
    slider.focus()
    left = next(d for d in range(15, 1, -1) if (d, 4, 4) not in made.bundle.trained)
    for _ in range(16 - left):
        page.keyboard.press("ArrowLeft")
    assert f"d={left}" in page.url
    assert f"d={left}, h=4, z=4" in page.locator(".paper h3").first.inner_text()
    assert "never drew" in page.locator(".mark").inner_text()
    page.wait_for_selector(".now .dot.untrained", timeout=60_000)
    assert page.locator(".now .dot").get_attribute("cx") != before
    page.get_by_role("button", name="Half of all").click()
    assert "d=8" in page.url
    assert "Training drew" in page.locator(".mark").inner_text()
    page.go_back()
    until(page, f"location.search.includes('d={left}')")
    until(page, f"document.querySelector('.paper h3').textContent.includes('d={left}')")
    assert page.get_by_label("Width d").input_value() == str(left)


def test_an_address_is_a_whole_state(browser: Browser, served: Served):
    address = f"{served.url}/?scene=sizes&d=10&draft=1&h=3&heat=1.2&prompt=return&z=2"
    page = browser.page(address)
    assert page.get_by_label("Width d").input_value() == "10"
    assert page.get_by_label("Heads h").input_value() == "3"
    assert page.get_by_label("Depth z").input_value() == "2"
    assert page.get_by_label("Temperature").input_value() == "1.2"
    assert page.get_by_label("Prompt").input_value() == "return"
    assert page.get_by_label("write ahead").is_checked()
    assert page.url == address
    nonsense = browser.page(f"{served.url}/?scene=nowhere&d=999999&h=-3&z=x&heat=%3Cb%3E")
    nonsense.wait_for_selector(".paper h3")
    assert nonsense.get_by_label("Width d").input_value() == "8"


def test_an_unknown_character_is_said_with_a_remedy(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=sizes&prompt=%E2%82%AC")
    page.wait_for_selector(".problem")
    words = page.locator(".problem").inner_text()
    assert "does not know the character" in words
    assert "Use characters of the text" in words
    page.get_by_label("Prompt").fill("def ")
    page.wait_for_selector(".problem", state="detached")


def test_the_token_leaves_the_address(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/#token=abc")
    page.wait_for_selector("nav a")
    assert "abc" not in page.url
    assert page.evaluate("studio.token") == "abc"


def test_the_page_works_with_the_network_cut(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=sizes&d=8&h=2&z=2")
    page.evaluate("studio.model()")
    page.context.set_offline(True)
    page.get_by_role("button", name="Native").click()
    until(page, "document.querySelector('.paper .note').textContent.startsWith('40 of 40')")
    page.context.set_offline(False)


def test_the_exported_folder_works_on_any_static_host(browser: Browser, made: Made, tmp_path: Path):
    folder = write_page(tmp_path / "site", made.file, made.bundle)
    with hosted(tmp_path) as url:
        page = browser.page(f"{url}/site/")
        until(page, "document.querySelector('.paper .note')?.textContent.startsWith('40 of 40')")
        assert page.locator("nav a", has_text="Runs").count() == 0
    assert folder.is_dir()


def test_every_scene_is_accessible_fits_a_phone_and_is_photographed(browser: Browser, served: Served):
    from axe_playwright_python.sync_playwright import Axe

    shots = os.environ.get("CONTINUA_SHOTS")
    for scene in browser.scenes(served.url):
        page = browser.page(f"{served.url}/?scene={scene}#token={TOKEN}")
        page.wait_for_selector(".panel")
        page.wait_for_timeout(1200)
        for name, width, theme in (("wide", 1280, "light"), ("phone", 390, "dark")):
            if page.evaluate("document.documentElement.dataset.theme") != theme:
                page.get_by_role("button", name="colours").click()
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scene, name)
            found = Axe().run(page)
            assert found.violations_count == 0, (scene, theme, found.generate_report())
            picture = page.screenshot(full_page=True)
            assert len(picture) > 10_000
            if shots:
                Path(shots).mkdir(parents=True, exist_ok=True)
                (Path(shots) / f"{scene}-{name}.png").write_bytes(picture)


def test_everything_can_be_reached_by_keyboard(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=sizes")
    page.wait_for_selector(".panel")
    seen = set()
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).textContent.slice(0, 24)")
        )
    for words in ("Skip to the scene", "Sizes", "Walk", "Width d", "Heads h", "Depth z", "Prompt", "Temperature"):
        assert words in seen, (words, seen)


def test_the_walk_leads_through_every_scene(browser: Browser, served: Served):
    page = browser.page(served.url)
    page.get_by_role("button", name="Walk").click()
    visited = []
    for number in range(1, 9):
        page.wait_for_selector(f"text=/^{number} of 8/")
        visited.append(page.locator("[data-scene]").get_attribute("data-scene"))
        page.get_by_role("button", name="Done" if number == 8 else "Next").click()
    assert page.locator(".walk").is_hidden()
    assert set(visited) == set(browser.scenes(served.url))
