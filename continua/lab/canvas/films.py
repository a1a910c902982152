"""Films of tokens on the circle and on the sphere: gif, mp4, or a strip of pictures."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from continua.errors import ConfigError, nearest
from continua.lab.canvas.canvas import (
    BALL,
    COLOURS,
    FAINT,
    INK,
    LINE,
    RING,
    Camera,
    bare,
    in_space,
    lighter,
    paint_ball,
    paint_ring,
    paint_tokens,
    paint_trails,
    shown,
    time_label,
    tints,
)
from continua.lab.figure import pyplot, save
from continua.lab.particles.simulate import Simulation
from continua.typing import Tensor

SUFFIXES = (".gif", ".mp4", ".png")
STRIP = 5  # pictures in a strip
TRAIL = 14  # frames that a trail goes back
SHADES = 56  # colours of a gif: its size grows with them
REST = 8  # times the last frame is shown, so that a film that starts anew lets one look at the end
Draw = Callable[[Any, int], list[Any]]


def film(
    found: Simulation,
    path: str | Path,
    groups: Tensor | Sequence[int] | None = None,
    *,
    captions: Sequence[str] | None = None,
    rate: float = 14.0,
    inches: float = 3.2,
    spin: float = 0.0,
) -> Path:
    """Tokens at every saved time, ``rate`` of them a second: on the circle, or on a sphere that turns by ``spin``°.

    The ending of ``path`` chooses the form: .gif, .mp4 (needs ffmpeg), or .png, a strip of five pictures. Tokens have
    the colour of their group; more than three dimensions are seen along the three principal directions of the end.
    """
    path = Path(path)
    possible(path)
    if captions is not None and len(captions) != len(found.times):
        remedy = f"Give {len(found.times)} of them, or leave them out."
        raise ConfigError("a film has one caption for each frame", got=len(captions), remedy=remedy)
    tokens, kept = shown(found)
    colours = tints(groups, kept)
    size = 26.0 if len(kept) <= 200 else 12.0
    where = tokens if tokens.shape[-1] == 2 else in_space(tokens)
    words = list(captions) if captions is not None else [f"t = {time_label(time)}" for time in found.times.tolist()]

    def draw(panel: Any, frame: int) -> list[Any]:
        panel.set_title(words[frame], fontsize=11, color=INK)
        if where.shape[-1] == 2:
            return paint_ring(panel, where[frame], colours, size)
        camera = Camera(30.0 + spin * frame)
        paint_ball(panel, camera)
        paint_trails(panel, where[max(0, frame - TRAIL) : frame + 1], colours, camera, 1.0)
        return paint_tokens(panel, where[frame], colours, camera, size)

    if path.suffix == ".png":
        return _strip(draw, len(where), path, inches)
    write = _gif if path.suffix == ".gif" else _mp4
    return write(draw, len(where), path, inches, rate)


def possible(path: str | Path) -> None:
    """Refuse a film that cannot be made, before anything is simulated for it."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError("a film is a .gif, a .mp4 or a .png", got=path.name, remedy=nearest(path.suffix, [*SUFFIXES]))
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        remedy = f"Install it (on Debian: apt install ffmpeg), or write {path.with_suffix('.gif').name}."
        raise ConfigError("a .mp4 film needs the program ffmpeg", got="none", remedy=remedy)


def _strip(draw: Draw, count: int, path: Path, inches: float) -> Path:
    plt = pyplot()
    frames = sorted({round(i * (count - 1) / (STRIP - 1)) for i in range(STRIP)})
    figure, panels = plt.subplots(1, len(frames), figsize=(0.8 * inches * len(frames), 0.9 * inches), squeeze=False)
    figure.subplots_adjust(0.005, 0.0, 0.995, 0.9, 0.02, 0)
    for panel, frame in zip(panels[0], frames, strict=True):
        draw(panel, frame)
    return lighter(save(plt, figure, path))


def _stage(plt: Any, inches: float) -> tuple[Any, Any]:
    figure, panel = plt.subplots(figsize=(inches, 1.06 * inches), dpi=100)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.93)
    bare(panel)
    return figure, panel


def _gif(draw: Draw, count: int, path: Path, inches: float, rate: float) -> Path:
    """One palette for all frames: half the bytes of a palette for each, and no flicker."""
    from PIL import Image

    plt = pyplot()
    figure, panel = _stage(plt, inches)
    frames = []
    for frame in range(count):
        panel.clear()
        draw(panel, frame)
        figure.canvas.draw()
        frames.append(Image.fromarray(numpy.asarray(figure.canvas.buffer_rgba())[..., :3].copy()))
    plt.close(figure)
    palette = _palette([frames[round(i * (count - 1) / 3)] for i in range(4)])
    flat = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    each = round(1000 / rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=[each] * (count - 1) + [REST * each], loop=0,
                 optimize=True)  # fmt: skip
    return path


def _palette(some: Sequence[Any]) -> Any:
    """The colours of some frames, with white, ink and the groups' own colours exactly as they are, pure and pale."""
    from PIL import Image

    sheet = Image.new("RGB", (some[0].width, len(some) * some[0].height))
    for i, one in enumerate(some):
        sheet.paste(one, (0, i * one.height))
    palette = sheet.quantize(SHADES, dither=Image.Dither.NONE)
    found = numpy.array(palette.getpalette()).reshape(-1, 3)
    plain = _numbers(("#ffffff", INK, FAINT, LINE, BALL, RING))
    pure = _numbers(COLOURS)
    pale = [(part * pure + (1 - part) * plain[4]).round().astype(int) for part in (0.3, 0.55, 0.8)]
    exact = numpy.concatenate([plain, pure, *pale])
    far = numpy.abs(found[:, None] - exact[None]).sum(-1).min(1) > 40  # nearly white would be taken for white
    palette.putpalette(numpy.concatenate([exact, found[far]])[:256].reshape(-1).tolist())
    return palette


def _numbers(colours: Sequence[str]) -> numpy.ndarray:
    return numpy.array([list(bytes.fromhex(one[1:])) for one in colours])


def _mp4(draw: Draw, count: int, path: Path, inches: float, rate: float) -> Path:
    from matplotlib.animation import FFMpegWriter

    plt = pyplot()
    figure, panel = _stage(plt, inches)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = FFMpegWriter(fps=round(rate))
    with writer.saving(figure, str(path), dpi=160):
        for frame in [*range(count), *[count - 1] * (REST - 1)]:
            panel.clear()
            draw(panel, frame)
            writer.grab_frame()
    plt.close(figure)
    return path
