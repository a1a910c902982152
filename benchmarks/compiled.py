"""One forward that compiles: what it costs beside plain torch and Hugging Face, and beside version 0.1.

    python benchmarks/compiled.py                  # about ten minutes on one core; --only held runs one part

CPU time in interleaved rounds, one thread, medians of ratios within a round with their 95 % interval; compiled means
torch.compile with inductor on the processor, on both sides. ``--before FOLDER`` names a checkout of version 0.1, whose
training steps and starts are timed beside ours in turns; without it git unpacks one from this repository's history.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import depth_case as depth
import torch
import torch.nn.functional as F
from common import Estimate, Row, cpu_seconds, environment, estimate, interleaved, peak_bytes, ratio, row, write
from compiled_before import before, starts
from rich.console import Console
from rich.table import Table
from special_case import SHAPE, hugging_face
from torch import Tensor, nn

import continua as ct
from continua.flow import RK4, Adaptive, Dopri5, Fixed, solve
from continua.flow.vectorfield import read_at
from continua.models import zoo
from continua.models.generate import decoding_step
from continua.operators.cache import Cache, StaticCache
from continua.tree import mapped

ELASTIC = {"vocab": 96, "d": 128, "heads": 4, "depth": 4, "context": 128}  # the demo's model
SIZES = {"native": {"d": 128, "h": 4, "z": 4}, "half of all": {"d": 64, "h": 2, "z": 2}}


class Plain(nn.Module):
    """The same network written by hand: separate q, k, v as the elastic model has them, tied head."""

    def __init__(self, d: int, h: int, z: int, e: int = 32, m: int | None = None) -> None:
        super().__init__()
        m = 4 * d if m is None else m
        self.h = h
        self.e = e
        self.wte = nn.Embedding(ELASTIC["vocab"], d)
        self.wpe = nn.Parameter(torch.randn(ELASTIC["context"], d))
        maps = {"q": (d, h * e), "k": (d, h * e), "v": (d, h * e), "o": (h * e, d), "up": (d, m), "down": (m, d)}
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"n1": nn.LayerNorm(d), "n2": nn.LayerNorm(d), **{k: nn.Linear(*size) for k, size in maps.items()}}
            )
            for _ in range(z)
        )
        self.norm = nn.LayerNorm(d)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of all tokens."""
        b, t = ids.shape
        x = self.wte(ids) + self.wpe[:t]
        for w in self.layers:
            y = w["n1"](x)
            q, k, v = (w[name](y).view(b, t, self.h, self.e).transpose(1, 2) for name in "qkv")
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
            x = x + w["o"](y)
            x = x + w["down"](F.gelu(w["up"](w["n2"](x)), approximate="tanh"))
        return F.linear(self.norm(x), self.wte.weight)


class PlainStep(nn.Module):
    """One token of the same network behind others: keys and values in buffers of one size."""

    def __init__(self, plain: Plain, size: int) -> None:
        super().__init__()
        self.plain = plain
        shape = (1, plain.h, size, plain.e)
        self.buffers_k = [torch.zeros(shape) for _ in plain.layers]
        self.buffers_v = [torch.zeros(shape) for _ in plain.layers]

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        """Logits behind one token."""
        net = self.plain
        x = net.wte(token[:, None]) + net.wpe[place]
        seen = torch.arange(self.buffers_k[0].shape[2]) <= place
        mask = torch.where(seen, 0.0, -1e30)[None, None, None]
        for w, keys, values in zip(net.layers, self.buffers_k, self.buffers_v, strict=True):
            y = w["n1"](x)
            q, k, v = (w[name](y).view(1, 1, net.h, net.e).transpose(1, 2) for name in "qkv")
            keys.index_copy_(2, place, k)
            values.index_copy_(2, place, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + w["o"](y.transpose(1, 2).reshape(1, 1, -1))
            x = x + w["down"](F.gelu(w["up"](w["n2"](x)), approximate="tanh"))
        return F.linear(net.norm(x), net.wte.weight)[:, -1]


def many(work: Callable[[], object], times: int) -> Callable[[], float]:
    """CPU time of some calls in a row: one is too short to be timed."""

    def run() -> None:
        for _ in range(times):
            work()

    return lambda: cpu_seconds(run)


def limited(name: str, got: Estimate, limit: float, **rest: Any) -> Row:
    """A row that holds where the median stays at or below the limit."""
    return row(name, got, target=f"≤ {limit:g}", held=got.median <= limit, **rest)


def compiled(work: Any) -> Any:
    """The same, compiled whole."""
    return torch.compile(work, fullgraph=True, dynamic=False)


# --- parts -----------------------------------------------------------------------------------------------------------


def elastic() -> Any:
    """The demo's model with fresh weights: time does not depend on them."""
    torch.manual_seed(0)
    return ct.elastic(zoo.gpt2(**ELASTIC)).eval()


@torch.no_grad()
def held(rounds: int) -> list[Row]:
    """A forward pass of a held view, batch 1, 128 tokens, beside the same network in plain torch."""
    model = elastic()
    ids = torch.randint(ELASTIC["vocab"], (1, ELASTIC["context"]))
    rows = []
    for how, bounds in (("eager", (1.05, 1.15)), ("compiled", (1.03, 1.05))):
        cases: dict[str, Callable[[], float]] = {}
        for name, size in SIZES.items():
            view = model.at(**size).held()
            plain = Plain(**size).eval()
            ours, theirs = (view, plain) if how == "eager" else (view.compiled(), compiled(plain))
            for _ in range(3):
                ours(ids)
                theirs(ids)
            cases[f"{name} ours"] = many(lambda ours=ours: ours(ids), 20)
            cases[f"{name} plain"] = many(lambda theirs=theirs: theirs(ids), 20)
        seen = interleaved(cases, rounds, 2)
        for name, bound in zip(SIZES, bounds, strict=True):
            got = ratio(seen[f"{name} ours"], seen[f"{name} plain"])
            rows.append(limited(f"held view, {how}, {name} / plain torch", got, bound))
        for who in ("ours", "plain"):
            got = ratio(seen[f"half of all {who}"], seen[f"native {who}"])
            name = f"half of all / native, {how}, {who}"
            rows.append(limited(name, got, 0.28) if (how, who) == ("compiled", "ours") else row(name, got))
    return rows


@torch.no_grad()
def token(rounds: int) -> list[Row]:
    """One generated token, batch 1, behind 64 others, compiled on both sides; and our eager step."""
    model = elastic()
    ids = torch.randint(ELASTIC["vocab"], (1, 64))
    cases: dict[str, Callable[[], float]] = {}
    for name, size in SIZES.items():
        at = model.settle(ct.at(**size))
        reads = mapped(model.read(at), ct.models.model.constant_weight)
        past = Cache()
        told = ct.models.Pass(ct.operators.Context(cache=past), reads=reads, last=True)
        model(ids, at, told)
        step = decoding_step(model, at, reads, StaticCache(past, ELASTIC["context"]))
        last = ids[:, -1]
        plain = compiled(PlainStep(Plain(**size), ELASTIC["context"]).eval())
        place = torch.tensor([64])
        for _ in range(3):
            step(last)
            plain(last, place)
        cases[f"{name} ours"] = many(lambda step=step, last=last: step(last), 100)
        cases[f"{name} plain"] = many(lambda plain=plain, last=last, place=place: plain(last, place), 100)
    seen = interleaved(cases, rounds, 2)
    return [
        limited("one token, half of all / native", ratio(seen["half of all ours"], seen["native ours"]), 0.6),
        limited("one token, native / plain torch", ratio(seen["native ours"], seen["native plain"]), 1.05),
        row("one token, half of all / plain torch", ratio(seen["half of all ours"], seen["half of all plain"])),
    ]


def training(rounds: int) -> list[Row]:
    """A compiled training step of a GPT-2 shape beside Hugging Face's, compiled too, with the same attention."""
    stored = hugging_face("gelu_new")
    with tempfile.TemporaryDirectory() as folder:
        stored.save_pretrained(folder)
        ours = ct.from_hf(folder).train()
    source = hugging_face("gelu_pytorch_tanh")  # the same function, fused: compiled or not, nobody gains by it
    source.load_state_dict(stored.state_dict())
    ids = torch.randint(SHAPE["vocab"], (SHAPE["batch"], SHAPE["tokens"] + 1))
    given = ids[:, :-1].contiguous()
    target = ids[:, 1:].flatten()
    forwards = {"ours": compiled(ours), "HF": compiled(lambda ids: source(input_ids=ids, use_cache=False).logits)}
    models = {"ours": ours, "HF": source}

    def step(name: str) -> None:
        models[name].zero_grad(set_to_none=True)
        F.cross_entropy(forwards[name](given).flatten(0, 1), target).backward()

    cases = {name: many(lambda name=name: step(name), 1) for name in models}
    seen = interleaved(cases, rounds, 2)
    peaks = {name: peak_bytes(lambda name=name: step(name)) for name in models}
    share = peaks["ours"] / peaks["HF"]
    return [
        limited("compiled training step / HF GPT-2 compiled", ratio(seen["ours"], seen["HF"]), 1.02),
        Row("the same, peak bytes", share, target="≤ 1.02", held=share <= 1.02),
    ]


@torch.no_grad()
def solvers(rounds: int) -> list[Row]:
    """RK4 compiled whole beside its compiled field; Dopri5's search with the compiled field beside the eager one."""
    rows = solver_rows(depth.SMALL, rounds, 3.0, 14.0)
    return rows + solver_rows(depth.MEDIUM, rounds, 1.5, 5.0)


def solver_rows(size: Any, rounds: int, whole: float, searched: float) -> list[Row]:
    """Both rows for one size of the field, whose weights are those of the middle of depth."""
    case = depth.Case(size)
    x = case.x
    field, args = case.bind()
    read = read_at(field, [(0.5,)] * 2, args)

    def alone(x: Tensor) -> Tensor:
        return field(0.5, x, read)

    def engine(x: Tensor) -> Tensor:
        return solve(lambda z, x, _: alone(x), x, depth.SPAN, solver=RK4(), control=Fixed(depth.STEPS)).final

    quick = compiled(alone)
    whole_engine = compiled(engine)

    def search() -> int:
        control = Adaptive(rtol=1e-4)
        path = solve(lambda z, x, _: quick(x), x, depth.SPAN, solver=Dopri5(), control=control)
        return int(path.stats["evaluations"])

    count = search()
    works = {
        "engine": lambda: whole_engine(x),
        "its field": lambda: [quick(x) for _ in range(4 * depth.STEPS)],
        "search": search,
        "eager field": lambda: [alone(x) for _ in range(count)],
        "quick field": lambda: [quick(x) for _ in range(count)],
    }
    seen = interleaved({name: many(work, 3) for name, work in works.items()}, rounds, 2)
    over = estimate([100 * (a / b - 1) for a, b in zip(seen["engine"], seen["its field"], strict=True)])
    parts = zip(seen["search"], seen["quick field"], seen["eager field"], strict=True)
    extra = estimate([100 * (a - b) / c for a, b, c in parts])
    name = f"Dopri5, search with the compiled field, share of the eager field, {size.name}"
    return [
        limited(f"RK4 compiled whole, over its compiled field, {size.name}", over, whole, unit="%"),
        limited(name, extra, searched, unit="%"),
    ]


def main() -> None:
    parts = {"held": held, "token": token, "training": training, "solvers": solvers}
    beside = {"before": before, "starts": starts}
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=[*parts, *beside], action="append", help="one part; may be repeated")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--before", metavar="FOLDER", help="a checkout of version 0.1")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = Console()
    rows: list[Row] = []
    for name in chosen.only or [*parts, *beside]:
        console.print(f"[dim]{name} …[/]")
        torch._dynamo.reset()
        rows += beside[name](chosen.rounds, chosen.before) if name in beside else parts[name](chosen.rounds)
    table = Table("what", "got", "target", "")
    for line in rows:
        table.add_row(line.name, line.shown, line.target, line.verdict)
    console.print(table)
    path = write("compiled", rows, part=bool(chosen.only), environment=environment())
    console.print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
