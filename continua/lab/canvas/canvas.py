"""What pictures and films of tokens share: colours, a camera, and how a circle and a sphere are painted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from continua.errors import ShapeError
from continua.lab.particles.simulate import Simulation
from continua.typing import Tensor

INK = "#22252a"
FAINT = "#b4bac2"
LINE = "#cdd3db"
BALL = "#f3f5f8"
RING = "#a9c3da"
# Okabe and Ito's colours, which colour-blind readers tell apart; beyond eight groups they come again
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4c9a", "#7f7f7f")
TURN = 2 * math.pi
DRAWN = 600  # at most this many tokens are drawn one by one
AROUND = 360  # places of the density drawn around the circle
WRONG = 12  # of 255, by which a colour may be off before it is given one of its own
SMOOTH = 0.07  # by how many radians it is smoothed
CLOSE = 0.06  # tokens this close (as a chord) are drawn as one, as large as they are many


@dataclass(frozen=True)
class Camera:
    """Looks at the origin from far away, along the direction of these two angles (in degrees)."""

    turn: float = 30.0
    lift: float = 22.0

    @property
    def matrix(self) -> numpy.ndarray:
        """Rows: to the right, upwards, towards the eye."""
        a = math.radians(self.turn)
        b = math.radians(self.lift)
        eye = [math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)]
        right = [-math.sin(a), math.cos(a), 0.0]
        up = [-math.sin(b) * math.cos(a), -math.sin(b) * math.sin(a), math.cos(b)]
        return numpy.array([right, up, eye])

    def see(self, points: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Places [..., 2] in the picture, and how near [...] each point is: 1 in front, −1 behind."""
        seen = points @ self.matrix.T
        return seen[..., :2], seen[..., 2]


def shown(found: Simulation, most: int = DRAWN) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The path [k, n, d] of at most ``most`` tokens of the first run, evenly chosen, and their indices."""
    x = found.directions.detach()
    x = x.reshape(len(x), -1, *x.shape[-2:])[:, 0]
    kept = torch.arange(x.shape[1]) if x.shape[1] <= most else torch.linspace(0, x.shape[1] - 1, most).long()
    return x[:, kept].double().numpy(force=True), kept.numpy()


def in_space(path: numpy.ndarray) -> numpy.ndarray:
    """Three coordinates of each token: its own for d = 3, otherwise along the three principal directions of the end."""
    if path.shape[-1] <= 3:
        return numpy.pad(path, [(0, 0)] * (path.ndim - 1) + [(0, 3 - path.shape[-1])])
    _, _, directions = numpy.linalg.svd(path[-1].reshape(-1, path.shape[-1]), full_matrices=True)
    return path @ directions[:3].T


def tints(groups: Tensor | Sequence[int] | None, kept: numpy.ndarray) -> list[Any]:
    """One colour for each of the kept tokens: that of its group, or on a scale if groups are real numbers; or blue."""
    if groups is None:
        return [COLOURS[0]] * len(kept)
    values = torch.as_tensor(groups).detach().cpu()
    if values.dim() != 1 or len(values) <= int(kept.max()):
        got = f"{list(values.shape)} for {int(kept.max()) + 1} or more tokens"
        raise ShapeError("each token has one group", got=got, remedy="Give one number for each token.")
    if not values.is_floating_point():
        return [COLOURS[label % len(COLOURS)] for label in values[kept].tolist()]
    import matplotlib

    low = float(values.min())
    high = float(values.max())
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.9 * (value - low) / ((high - low) or 1.0)) for value in values[kept].tolist()]


def time_label(time: float) -> str:
    """A time to read: three digits, and no powers of ten.

    >>> time_label(0.1234), time_label(5.5), time_label(1778.3)
    ('0.123', '5.5', '1,778')
    """
    return f"{time:,.0f}" if abs(time) >= 100 else f"{time:.3g}"


def bare(panel: Any, reach: float = 1.06) -> None:
    """A square without axes."""
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    panel.set_frame_on(False)


def halves_of_pi(panel: Any) -> None:
    """Angles from 0 to 2π upwards."""
    names = ("0", "π/2", "π", "3π/2", "2π")
    panel.set_ylim(0, TURN)
    panel.set_yticks([i * TURN / 4 for i in range(5)], names)


def lighter(path: Path) -> Path:
    """A picture in 256 colours, which show all there is to see in a third of the bytes.

    Half of them are chosen by area, the other half among what those show wrongly: by area alone, the few dots of a
    cluster would be given the colour of another.
    """
    from PIL import Image

    if path.suffix != ".png":
        return path
    with Image.open(path) as image:
        full = image.convert("RGB")
    pixels = numpy.asarray(full)
    palette = _colours(full)
    off = numpy.abs(pixels.astype(int) - palette[_nearest(pixels, palette)]).max(-1) > WRONG
    if off.any():
        palette = numpy.concatenate([palette, _colours(Image.fromarray(pixels[off][None]))])
    small = Image.fromarray(_nearest(pixels, palette).astype(numpy.uint8), "P")
    small.putpalette(palette.astype(numpy.uint8).tobytes())
    small.save(path, optimize=True)
    return path


def _colours(picture: Any) -> numpy.ndarray:
    """At most 128 colours [k, 3] of a picture, by area."""
    found = picture.quantize(128).getpalette()
    return numpy.array(found[: 3 * 128], dtype=int).reshape(-1, 3)


def _nearest(pixels: numpy.ndarray, palette: numpy.ndarray) -> numpy.ndarray:
    """Which colour each pixel [height, width, 3] is shown in; the library's own choice is coarse."""
    codes, inverse = numpy.unique(pixels.astype(int) @ [65536, 256, 1], return_inverse=True)
    rows = numpy.stack([codes >> 16, (codes >> 8) & 255, codes & 255], -1)
    far = numpy.square(rows).sum(-1)[:, None] - 2 * rows @ palette.T + numpy.square(palette).sum(-1)
    chosen: numpy.ndarray = far.argmin(-1)[inverse].reshape(pixels.shape[:-1])
    return chosen


def paint_ball(panel: Any, camera: Camera) -> None:
    """A disc with circles of latitude and meridians; those behind are fainter."""
    from matplotlib.collections import LineCollection

    rim = numpy.linspace(0, 2 * math.pi, 181)
    panel.fill(numpy.cos(rim), numpy.sin(rim), color=BALL, zorder=0)
    panel.plot(numpy.cos(rim), numpy.sin(rim), color=FAINT, lw=1.0, zorder=1)
    circles = [_parallel(lift, rim) for lift in (-60.0, -30.0, 0.0, 30.0, 60.0)] + [
        _meridian(turn, rim) for turn in (0.0, 30.0, 60.0, 90.0, 120.0, 150.0)
    ]
    front = []
    behind = []
    for circle in circles:
        places, near = camera.see(circle)
        pieces = numpy.stack([places[:-1], places[1:]], 1)
        ahead = (near[:-1] + near[1:]) > 0
        front.extend(pieces[ahead])
        behind.extend(pieces[~ahead])
    panel.add_collection(LineCollection(behind, colors="#e6e9ee", linewidths=0.5, zorder=1))
    panel.add_collection(LineCollection(front, colors=LINE, linewidths=0.6, zorder=2))
    bare(panel)


def _parallel(lift: float, rim: numpy.ndarray) -> numpy.ndarray:
    high = math.radians(lift)
    level = numpy.full_like(rim, math.sin(high))
    return numpy.stack([math.cos(high) * numpy.cos(rim), math.cos(high) * numpy.sin(rim), level], -1)


def _meridian(turn: float, rim: numpy.ndarray) -> numpy.ndarray:
    a = math.radians(turn)
    return numpy.stack([numpy.sin(rim) * math.cos(a), numpy.sin(rim) * math.sin(a), numpy.cos(rim)], -1)


def paint_tokens(
    panel: Any, points: numpy.ndarray, colours: Sequence[Any], camera: Camera, size: float = 16.0
) -> list[Any]:
    """Tokens [n, 3] on a ball: those behind are small and pale, and lie below those in front."""
    from matplotlib.colors import to_rgba_array

    places, near = camera.see(points)
    rgba = to_rgba_array(list(colours))
    sizes = size * crowded(points)
    drawn = []
    for ahead, order, share, alpha in ((False, 3, 0.5, 0.35), (True, 5, 1.0, 0.92)):
        own = (near > 0) == ahead
        tone = rgba[own].copy()
        tone[:, 3] = alpha
        edge = "white" if ahead else "none"
        spots = panel.scatter(
            *places[own].T, s=share * sizes[own], c=tone, edgecolors=edge, linewidths=0.3, zorder=order
        )
        drawn.append(spots)
    return drawn


def crowded(points: numpy.ndarray) -> numpy.ndarray:
    """How large each token is drawn: 1 alone, up to 7 where all are in one place."""
    near = numpy.square(points[:, None] - points[None]).sum(-1) < CLOSE**2
    return 1 + 6 * (near.sum(1) - 1) / max(1, len(points) - 1)


def paint_trails(
    panel: Any, path: numpy.ndarray, colours: Sequence[Any], camera: Camera, width: float = 0.8
) -> list[Any]:
    """The ways [k, n, 3] that tokens came, fading into the past and behind the ball."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba_array

    if len(path) < 2:
        return []
    places, near = camera.see(path)
    pieces = numpy.stack([places[:-1], places[1:]], 2).reshape(-1, 2, 2)
    ahead = ((near[:-1] + near[1:]) > 0).reshape(-1)
    count = path.shape[1]
    rgba = numpy.tile(to_rgba_array(list(colours)), (len(path) - 1, 1))
    age = numpy.repeat(numpy.linspace(0.25, 1.0, len(path) - 1), count)
    rgba[:, 3] = age * numpy.where(ahead, 0.55, 0.14)
    drawn = []
    for which, order in ((~ahead, 2), (ahead, 4)):
        drawn.append(panel.add_collection(
            LineCollection(pieces[which], colors=rgba[which], linewidths=width, zorder=order)
        ))  # fmt: skip
    return drawn


def paint_ring(panel: Any, points: numpy.ndarray, colours: Sequence[Any], size: float = 16.0) -> list[Any]:
    """Tokens [n, 2] on the circle, and around it how densely they lie in each direction, on a root scale."""
    rim = numpy.linspace(0, 2 * math.pi, AROUND + 1)
    round_ = numpy.stack([numpy.cos(rim), numpy.sin(rim)])
    angles = numpy.arctan2(points[:, 1], points[:, 0])
    counts, _ = numpy.histogram(angles, AROUND, (-math.pi, math.pi))
    k = numpy.arange(AROUND // 2 + 1)
    smooth = numpy.fft.irfft(numpy.fft.rfft(counts / len(points)) * numpy.exp(-((k * SMOOTH) ** 2) / 2), AROUND)
    high = 0.5 * numpy.sqrt(numpy.maximum(smooth, 0) * AROUND * SMOOTH / math.sqrt(2 * math.pi))
    high = numpy.append(high, high[0])
    turned = -round_  # the histogram begins at −π
    hull = numpy.concatenate([(1.07 + high) * turned, 1.07 * turned[:, ::-1]], 1)
    drawn = list(panel.fill(*hull, color=RING, lw=0, zorder=0))
    drawn += panel.plot(*round_, color=FAINT, lw=1.0, zorder=1)
    spots = size * crowded(points)
    drawn.append(panel.scatter(*points.T, s=spots, c=list(colours), edgecolors="white", linewidths=0.3, zorder=3))
    bare(panel, 1.5)
    return drawn
