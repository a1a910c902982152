"""Makes the film and the picture of the studio's Sizes scene, from the demo run.

    continua demo
    python tools/studio_film.py runs/demo

A real browser shows the page, sliders are moved, and every frame is a photograph: docs/images/studio.webp; and the page
with dark colours as docs/images/studio.png.
"""

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from continua.cli.studio import Opening, run  # noqa: E402
from continua.devices import find_device  # noqa: E402
from tools.browser import chromium, hosted  # noqa: E402

OUT = ROOT / "docs" / "images"
SIZE = {"width": 1180, "height": 900}
SCALE = 0.72
LARGEST = 3_000_000  # bytes
PAUSE = 160  # milliseconds between two photographs
PATH = [(128, 4, 4), (112, 4, 4), (96, 4, 4), (80, 4, 4), (64, 4, 4), (64, 3, 4), (64, 2, 4), (64, 2, 3), (64, 2, 2)]


def photograph(page: Any) -> Image.Image:
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return picture.resize((int(picture.width * SCALE), int(picture.height * SCALE)), Image.Resampling.LANCZOS)


def shot(page: Any, frames: list[Image.Image], count: int) -> None:
    for _ in range(count):
        page.wait_for_timeout(PAUSE)
        frames.append(photograph(page))


def filmed(url: str) -> list[Image.Image]:
    frames: list[Image.Image] = []
    with chromium() as browser:
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(f"{url}/?scene=sizes&d=128&h=4&z=4&heat=0.7&prompt=def%20")
        page.wait_for_selector("nav a")
        page.evaluate("studio.model()")
        shot(page, frames, 6)
        for d, h, z in PATH[1:]:
            for letter, value in (("Width d", d), ("Heads h", h), ("Depth z", z)):
                slider = page.get_by_label(letter)
                if slider.input_value() != str(value):
                    slider.fill(str(value))
            shot(page, frames, 3)
        shot(page, frames, 10)
        page.get_by_label("write ahead").check()
        shot(page, frames, 16)
        dark = browser.new_context(viewport=SIZE, color_scheme="dark").new_page()
        dark.goto(f"{url}/?scene=sizes&d=64&h=2&z=2&heat=0.7&prompt=def%20&draft=1")
        dark.wait_for_selector("nav a")
        dark.evaluate("studio.model()")
        dark.wait_for_timeout(6000)
        dark.screenshot(path=OUT / "studio.png")
    return frames


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        site = Path(place) / "site"
        run(Path(sys.argv[1]), Opening(export=site), find_device("cpu"))
        with hosted(site) as url:
            frames = filmed(url)
    path = OUT / "studio.webp"
    for quality in (70, 55, 40, 25):
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=PAUSE, loop=0, quality=quality, method=4)
        if path.stat().st_size <= LARGEST:
            break
    print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
