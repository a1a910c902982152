"""The page in a real browser: its arithmetic against torch, its scenes, addresses and manners."""

import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import continua as ct
from continua.studio.page import write_page
from tests.studio.browser import Browser, opened, until
from tests.studio.conftest import TOKEN, TOKENS, Made, Served
from tools.browser import hosted

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


def test_one_batch_shows_the_field_the_attention_and_what_comes_next(browser: Browser, served: Served, model: Any):
    page = browser.page(f"{served.url}/?scene=batch&text=return%20model&d=10&h=3&z=3&depth=2.0&head=1")
    until(page, "document.querySelectorAll('.token').length === 12")
    assert page.evaluate("[...document.querySelectorAll('.heat')].map((one) => [one.width, one.height])") == [
        [12, 10], [12, 12]]  # fmt: skip
    ids = TOKENS.encode("return model")[None]
    with torch.no_grad():
        shares = model.at(d=10, h=3, z=3)(ids)[0, -1].softmax(-1)
    shown = page.locator(".likely li span").first.inner_text()
    assert shown == f"{100 * float(shares.max()):.1f} %"
    assert "10 nodes, each of weight 1.6" in page.locator(".grids").inner_text()
    before = page.locator(".heat").first.screenshot()
    depth = page.get_by_label("Depth", exact=True)
    depth.focus()
    page.keyboard.press("ArrowLeft")
    assert "depth=1.98" in page.url
    assert page.locator(".heat").first.screenshot() != before, "between two steps the field is defined too"
    page.locator(".heat").nth(1).hover(position={"x": 5, "y": 5})
    assert "looks at 1 r: 100.0 %" in page.locator(".panel .note").nth(1).inner_text()


PATH = """async ({x, d, law, until}) => {
  const lab = await studio.lab();
  const flow = new lab.Flow(Float64Array.from(x), d, {...law, kappa: Infinity});
  flow.advance(until);
  return [...flow.x];
}"""


@pytest.mark.parametrize(
    ("d", "kind", "beta", "causal", "until"),
    [(2, "SA", 9.0, False, 6.0), (3, "SA", 4.0, False, 5.0), (3, "USA", 2.0, False, 1.0), (3, "SA", 4.0, True, 4.0)],
)
def test_particles_move_as_the_library_says(
    browser: Browser, served: Served, d: int, kind: str, beta: float, causal: bool, until: float
):
    from continua.lab import Particles, SelfAttention, Unnormalised, simulate

    start = Particles.uniform(200, d, torch.Generator().manual_seed(3))
    law = {"kind": kind, "beta": beta, "causal": causal, "sign": 1}
    page = browser.kept(served.url)
    found = page.evaluate(PATH, {"x": start.x.flatten().tolist(), "d": d, "law": law, "until": until})
    own = {"SA": SelfAttention, "USA": Unnormalised}[kind](beta, causal=causal)
    wanted = simulate(own, Particles(start.x.double()), until, save=2).x[-1]
    assert float((torch.tensor(found).reshape(-1, d) - wanted).abs().max()) < 1e-3


def test_burgers_equation_flows_as_the_library_says(browser: Browser, served: Served):
    from continua.data.burgers import burgers

    t = torch.arange(256, dtype=torch.float64) / 256
    wave = torch.sin(2 * torch.pi * t) + 0.4 * torch.cos(6 * torch.pi * t)
    page = browser.kept(served.url)
    flow = "async (u) => [...(await studio.lab()).burgers(Float64Array.from(u), 0.01, 1).u]"
    found = torch.tensor(page.evaluate(flow, wave.tolist()))
    assert float((found - burgers(wave, 0.01, 1.0, 2048)).abs().max()) < 1e-5


def test_scattered_points_are_read_as_the_library_reads_them(browser: Browser, served: Served):
    from continua.axes import Circle, at
    from continua.models import Batch
    from continua.models.zoo import function_map

    torch.manual_seed(0)
    model = function_map(Circle(), 32, at=at(d=8, h=2, m=8, z=1), modes=6).double()
    points = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = torch.sin(2 * torch.pi * points) + 0.2 * torch.cos(6 * torch.pi * points)
    wanted = model.embed.lay(Batch(values[None, :, None], times=points)).values[0, :, 0]
    prior = {"spectrum": model.embed.spectrum.tolist(), "noise": 1e-4}
    read = "async ([t, u, prior]) => [...(await studio.lab()).laid(t, u, 32, prior)]"
    found = browser.kept(served.url).evaluate(read, [points.tolist(), values.tolist(), prior])
    assert float((torch.tensor(found) - wanted).abs().max()) < 1e-5


def coloured(page: Any) -> int:
    """Pixels of the stage that have a colour."""
    picture = Image.open(io.BytesIO(page.locator("canvas.stage").screenshot())).convert("RGB")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(-1, 3).int()
    return int((pixels.amax(-1) - pixels.amin(-1) > 60).sum())


def test_byte_pairs_are_read_and_written_as_the_library_does(browser: Browser, served: Served):
    from continua.data.tokens import BytePairs

    learned = "def one(two):\n    return three + 42  # it's a naïve façade, 100 % of 日本語\n" * 30
    tokens = BytePairs.of(learned, 420)
    text = "\n\n  def façade(three):   return 'it''s' + 4200\t# 日本 €🙂 we'll see  "
    read = """async ([described, text]) => {
      const own = new (await studio.lab()).BytePairs(described);
      const ids = own.encode(text);
      return [own.size, ids, own.decode(ids)];
    }"""
    size, ids, again = browser.kept(served.url).evaluate(read, [tokens.described, text])
    assert size == tokens.size
    assert ids == tokens.encode(text).tolist()
    assert again == text == tokens.decode(torch.tensor(ids))


def test_particles_are_drawn_and_react(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=particles&on=sphere&n=300&beta=6")
    until(page, "Number(document.querySelector('.numbers dd')?.textContent) > 0.5")
    assert coloured(page) > 300, "tokens have colours, paper and lines have none"
    assert page.locator(".measured circle").count() > 3
    page.get_by_label("Where").select_option("circle")
    assert "on=circle" in page.url
    until(page, "document.querySelector('.panel .note')?.textContent.includes('circle')")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_timeout(300)
    box = page.locator("canvas.stage").bounding_box()
    assert coloured(page) > 100
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    radius = box["height"] / 2 / (3.3 * math.tan(math.radians(19)))
    page.mouse.move(*middle)
    assert "grab" not in page.locator("canvas.stage").get_attribute("class")
    page.mouse.move(middle[0] + radius, middle[1])
    assert "grab" in page.locator("canvas.stage").get_attribute("class"), "a token can be dragged"
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] + radius)
    page.mouse.up()
    page.go_back()
    until(page, "document.querySelector('.panel .note')?.textContent.includes('sphere')")


def test_people_who_want_no_motion_get_none(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=particles&n=100", still=True)
    page.wait_for_selector("canvas.stage")
    page.wait_for_timeout(800)
    assert page.locator(".numbers dd").first.inner_text() == "0.0"
    page.get_by_role("button", name="Play").click()
    until(page, "Number(document.querySelector('.numbers dd').textContent) > 0.1")


def test_real_models_react(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=real&depth=0")
    page.wait_for_selector(".chips li")
    rows = page.locator(".numbers").first.locator("dd")
    assert rows.nth(0).inner_text() == rows.nth(1).inner_text(), "both begin at the same directions"
    page.get_by_label("Depth, in layers").focus()
    page.keyboard.press("End")
    assert "depth=6" in page.url
    assert rows.nth(0).inner_text() != rows.nth(1).inner_text()
    page.get_by_label("Text").select_option("1")
    assert "text=1" in page.url


NEARLY = """() => {
  const path = document.querySelector('.drawable .start path');
  return Array.from({length: 20}, (_, i) => path.getPointAtLength(path.getTotalLength() * i / 20).y);
}"""


def test_functions_are_drawn_measured_and_answered(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=functions&count=64")
    until(page, "document.querySelector('.numbers dd')?.textContent.includes('%')")
    error = float(page.locator(".numbers dd").first.inner_text().removesuffix(" %"))
    assert error < 1.5, "the example is a function of the kind that it was trained on"
    page.get_by_role("button", name="Sine").click()
    assert "wave=" in page.url
    box = page.locator(".drawable svg").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    for share in (0.35, 0.4, 0.45, 0.5):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.7 * box["height"])
    before = page.evaluate("location.search")
    page.mouse.up()
    address = page.evaluate("location.href")
    assert before not in address, "the drawing is in the address"
    drawn = page.evaluate(NEARLY)
    again = browser.page(address)
    again.wait_for_selector(".drawable .start path")
    assert max(abs(a - b) for a, b in zip(drawn, again.evaluate(NEARLY), strict=True)) < 12


def test_a_fit_is_started_watched_and_stopped_from_the_page(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=runs&recipe=text#token={TOKEN}")
    for name, number in (("steps", 100000), ("d", 8), ("heads", 2), ("depth", 1), ("context", 16), ("batch", 4)):
        page.get_by_label(name, exact=True).fill(str(number))
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector(".curve-0 path", timeout=90_000)
    page.get_by_role("button", name="Stop it").click()
    until(page, "document.body.textContent.includes('was stopped and is saved')", 90)
    assert "text-1" in page.locator(".table-holder").first.inner_text()


def test_a_wait_is_shown_at_once_and_a_missing_model_is_said_in_words(browser: Browser, served: Served):
    page = browser.page(served.url)
    page.evaluate("ready()")
    page.route("**/model.onnx", lambda route: None)  # never answered
    page.goto(f"{served.url}/?scene=sizes")
    began = page.evaluate("performance.now()")
    page.wait_for_selector(".busy progress")
    assert page.evaluate("performance.now()") - began < 5000, "a bar while the model is loaded"
    assert "loading" in page.locator(".busy").inner_text()
    page.unroute("**/model.onnx")
    page.route("**/model.onnx", lambda route: route.fulfill(status=404))
    page.goto(f"{served.url}/?scene=sizes")
    page.wait_for_selector(".problem")
    assert "model.onnx is not there (404). Write the page again" in page.locator(".problem").inner_text()
    browser.complaints.clear()


def test_the_token_leaves_the_address(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/#token=abc")
    page.wait_for_selector("nav a")
    assert "abc" not in page.url
    assert page.evaluate("studio.token") == "abc"


def test_the_page_works_with_the_network_cut(browser: Browser, served: Served):
    page = browser.page(f"{served.url}/?scene=sizes&d=8&h=2&z=2")
    page.evaluate("ready()")
    page.context.set_offline(True)
    page.get_by_role("button", name="Native").click()
    until(page, "document.querySelector('.paper .note').textContent.startsWith('40 of 40')")
    for scene, wanted in (
        ("One batch", "document.querySelectorAll('.likely li').length > 0"),
        ("Particles", "document.querySelectorAll('.numbers dd').length > 3"),
        ("Real models", "document.querySelectorAll('.chips li').length > 5"),
        ("Functions", "document.querySelector('.numbers dd')?.textContent.includes('%')"),
    ):
        page.get_by_role("link", name=scene).click()
        until(page, wanted)
    assert page.locator(".problem").count() == 0
    page.context.set_offline(False)


def test_the_exported_folder_works_on_any_static_host(browser: Browser, made: Made, tmp_path: Path):
    assert write_page(tmp_path / "site", made.file, made.bundle).is_dir()
    with hosted(tmp_path) as url:
        page = browser.page(f"{url}/site/")
        until(page, "document.querySelector('.paper .note')?.textContent.startsWith('40 of 40')")
        assert page.locator("nav a", has_text="Runs").count() == 0
        browser.close()  # before its host is gone: the page is still fetching the other scenes


def test_every_scene_is_accessible_fits_a_phone_and_is_photographed(browser: Browser, served: Served):
    from axe_playwright_python.sync_playwright import Axe

    shots = os.environ.get("CONTINUA_SHOTS")
    for scene in [*browser.scenes(served.url), "runs"]:
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
