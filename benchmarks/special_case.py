"""The special case is free: a GPT-2 shape through Continua, Hugging Face and hand-written torch, same weights.

    python benchmarks/special_case.py            # about three minutes on one core

CPU time of forward + backward (cross-entropy, float32, one thread, train mode, no dropout) in interleaved rounds; peak
tensor bytes of the same step; what ``import continua`` adds to ``import torch``; how soon ``continua --help`` answers.
The vocabulary is 1024: a larger head is the same matrix product in all peers and would only hide differences.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    Child,
    Estimate,
    Row,
    cpu_seconds,
    difference,
    environment,
    estimate,
    interleaved,
    peak_bytes,
    python,
    ratio,
    row,
    run_child,
    write,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging as hf_logging

import continua as ct

SHAPE = {"d": 256, "heads": 8, "depth": 6, "tokens": 256, "batch": 8, "vocab": 1024}
OURS, HF, HF_FUSED, PLAIN = "Continua", "HF", "HF, fused GELU", "plain torch"
ABOUT = {
    OURS: "ct.from_hf on the folder that the HF model saved",
    HF: "GPT2LMHeadModel, attn_implementation='sdpa', dropout 0, train mode, no cache",
    HF_FUSED: "the same with activation gelu_pytorch_tanh: our fused GELU is then no advantage",
    PLAIN: "hand-written: one qkv product, fused attention, GELU and LayerNorm, tied head",
}
SAME = 1e-5  # float32 logits and gradients, relative to the largest entry


# --- the peers -------------------------------------------------------------------------------------------------------


def hugging_face(activation: str) -> GPT2LMHeadModel:
    """GPT-2 as Hugging Face writes it, with fused attention and without dropout."""
    config = GPT2Config(
        vocab_size=SHAPE["vocab"],
        n_positions=SHAPE["tokens"],
        n_embd=SHAPE["d"],
        n_layer=SHAPE["depth"],
        n_head=SHAPE["heads"],
        activation_function=activation,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()


class Plain(nn.Module):
    """GPT-2 as one would write it by hand for speed: q, k, v in one product, fused attention, GELU and LayerNorm."""

    def __init__(self, source: GPT2LMHeadModel) -> None:
        super().__init__()
        body = source.transformer
        self.heads = source.config.n_head
        self.wte, self.wpe = _copy(body.wte.weight), _copy(body.wpe.weight)
        # Hugging Face stores [in, out]; F.linear wants [out, in]
        self.blocks = nn.ModuleList(
            nn.ParameterDict(
                {
                    "n1w": _copy(block.ln_1.weight),
                    "n1b": _copy(block.ln_1.bias),
                    "qkvw": _copy(block.attn.c_attn.weight.T),
                    "qkvb": _copy(block.attn.c_attn.bias),
                    "ow": _copy(block.attn.c_proj.weight.T),
                    "ob": _copy(block.attn.c_proj.bias),
                    "n2w": _copy(block.ln_2.weight),
                    "n2b": _copy(block.ln_2.bias),
                    "upw": _copy(block.mlp.c_fc.weight.T),
                    "upb": _copy(block.mlp.c_fc.bias),
                    "downw": _copy(block.mlp.c_proj.weight.T),
                    "downb": _copy(block.mlp.c_proj.bias),
                }
            )
            for block in body.h
        )
        self.nw, self.nb = _copy(body.ln_f.weight), _copy(body.ln_f.bias)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        x = F.embedding(ids, self.wte) + self.wpe[:t]
        for w in self.blocks:
            y = F.layer_norm(x, x.shape[-1:], w["n1w"], w["n1b"])
            q, k, v = F.linear(y, w["qkvw"], w["qkvb"]).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
            x = x + F.linear(y, w["ow"], w["ob"])
            y = F.layer_norm(x, x.shape[-1:], w["n2w"], w["n2b"])
            y = F.gelu(F.linear(y, w["upw"], w["upb"]), approximate="tanh")
            x = x + F.linear(y, w["downw"], w["downb"])
        return F.linear(F.layer_norm(x, x.shape[-1:], self.nw, self.nb), self.wte)


def _copy(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))


class Peer:
    """A model, its logits, and its embedding table (the one weight all peers store alike)."""

    def __init__(self, model: nn.Module, logits: Callable[[Tensor], Tensor], table: Tensor) -> None:
        self.model, self.logits, self.table = model, logits, table

    def step(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Forward, loss, backward."""
        logits = self.logits(ids)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        return logits

    def clear(self) -> None:
        """Drop the gradients; not part of what is measured."""
        for parameter in self.model.parameters():
            parameter.grad = None


def peers() -> dict[str, Peer]:
    """The four models with one set of random weights."""
    torch.manual_seed(0)
    theirs, fused = hugging_face("gelu_new"), hugging_face("gelu_pytorch_tanh")
    fused.load_state_dict(theirs.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = ct.from_hf(folder).train()
    plain = Plain(theirs)
    return {
        OURS: Peer(ours, ours, ours.embed.table.coefficients),
        HF: Peer(theirs, _hf_logits(theirs), theirs.transformer.wte.weight),
        HF_FUSED: Peer(fused, _hf_logits(fused), fused.transformer.wte.weight),
        PLAIN: Peer(plain, plain, plain.wte),
    }


def _hf_logits(model: GPT2LMHeadModel) -> Callable[[Tensor], Tensor]:
    return lambda ids: model(input_ids=ids, use_cache=False).logits


def check_equal(models: dict[str, Peer], ids: Tensor, targets: Tensor) -> float:
    """Time only what computes the same: logits and gradients of the embedding. Returns the largest difference."""
    worst, reference = 0.0, models[HF]
    logits = reference.step(ids, targets)
    for name, peer in models.items():
        if peer is reference:
            continue
        pairs = ((peer.step(ids, targets), logits), (peer.table.grad, reference.table.grad))
        for got, wanted in pairs:
            worst = max(worst, float((got - wanted).detach().abs().max() / wanted.detach().abs().max()))
        if worst > SAME:
            raise SystemExit(f"{name} does not compute what {HF} computes: {worst:.1e} apart. Nothing was timed.")
        peer.clear()
    reference.clear()
    return worst


# --- the measurements ------------------------------------------------------------------------------------------------


def measure_steps(models: dict[str, Peer], rounds: int, warmup: int, data: tuple[Tensor, Tensor], tick: Callable):
    """CPU seconds of forward + backward of each peer, round by round."""

    def case(peer: Peer) -> Callable[[], float]:
        def once() -> float:
            peer.clear()
            return cpu_seconds(lambda: peer.step(*data))

        return once

    return interleaved({name: case(peer) for name, peer in models.items()}, rounds, warmup, tick)


def measure_memory(models: dict[str, Peer], data: tuple[Tensor, Tensor], tick: Callable) -> dict[str, int]:
    """Peak bytes of activations, temporaries and gradients; the weights themselves are equal and left out."""

    def once(peer: Peer) -> None:
        peer.step(*data)
        peer.clear()

    found = {}
    for name, peer in models.items():
        peer.clear()
        found[name] = peak_bytes(lambda peer=peer: once(peer))
        tick()
    return found


def measure_imports(rounds: int, tick: Callable) -> dict[str, list[float]]:
    """CPU seconds of a fresh interpreter; naming a class loads every room, since names are imported when first used."""
    commands = {"torch": "import torch", "continua": "import torch, continua; continua.Transformer"}
    cases = {name: (lambda code=code: _fine(run_child(python("-c", code))).cpu) for name, code in commands.items()}
    return interleaved(cases, rounds, 1, tick)


def measure_help(rounds: int, tick: Callable) -> dict | None:
    """Wall and CPU seconds of ``continua --help``, and whether it loads torch; None while there is no such command."""
    script = Path(sys.executable).parent / "continua"
    if not script.is_file() or run_child([str(script), "--help"]).code != 0:
        return None
    runs = []
    for _ in range(rounds):
        runs.append(_fine(run_child([str(script), "--help"])))
        tick()
    loaded = _fine(run_child(python("-X", "importtime", str(script), "--help"))).errors
    return {
        "wall": [run.wall for run in runs],
        "cpu": [run.cpu for run in runs],
        "imports_torch": re.search(r"\|\s+torch\s*$", loaded, re.MULTILINE) is not None,
    }


def _fine(child: Child) -> Child:
    if child.code != 0:
        raise SystemExit(f"a measured process failed: {child.errors.strip().splitlines()[-1:]}")
    return child


# --- the result ------------------------------------------------------------------------------------------------------


def no_slower(got: Estimate) -> bool:
    """At most 1.00, or not to be told from it: the interval contains 1.00 and ends at 1.03 or before."""
    return got.median <= 1.0 or (got.low <= 1.0 <= got.high <= 1.03)


def step_rows(times: dict[str, list[float]], peaks: dict[str, int]) -> list[Row]:
    """Ratios of time and memory."""
    speed = {name: ratio(times[OURS], times[name]) for name in (HF, HF_FUSED, PLAIN)}
    space = {name: peaks[OURS] / peaks[name] for name in (HF, HF_FUSED, PLAIN)}
    promise, stricter = "≤ 1.00, or ≈ 1.00 (≤ 1.03)", "stricter than promised"
    return [
        row(f"CPU time / {HF}", speed[HF], target=promise, held=no_slower(speed[HF])),
        row(f"CPU time / {HF_FUSED}", speed[HF_FUSED], note=stricter),
        row(f"CPU time / {PLAIN}", speed[PLAIN], target="≤ 1.05", held=speed[PLAIN].median <= 1.05),
        Row(f"peak memory / {HF}", space[HF], target="≤ 1.05", held=space[HF] <= 1.05),
        Row(f"peak memory / {HF_FUSED}", space[HF_FUSED], note=stricter),
        Row(f"peak memory / {PLAIN}", space[PLAIN], target="≤ 1.05", held=space[PLAIN] <= 1.05),
    ]


def start_rows(imports: dict[str, list[float]], answered: dict | None) -> list[Row]:
    """Seconds until something happens."""
    added = difference(imports["continua"], imports["torch"])
    rows = [row("import continua − import torch", added, unit="s", target="≤ 0.5 s", held=added.median <= 0.5)]
    if answered is None:
        return rows
    wall, cpu = estimate(answered["wall"]), estimate(answered["cpu"])
    lean = not answered["imports_torch"]
    target, note = "< 0.5 s without torch", "torch is not imported" if lean else "torch is imported"
    return [
        *rows,
        row("continua --help, wall", wall, unit="s", target=target, held=wall.median < 0.5 and lean, note=note),
        row("continua --help, CPU", cpu, unit="s", note="steadier than wall"),
    ]


def show(console: Console, rows: list[Row]) -> None:
    table = Table("Continua: GPT-2 forward + backward", "median [95 % interval]", "target", "")
    for line in rows:
        colour = {"PASS": "green", "MISS": "red"}.get(line.verdict, "dim")
        table.add_row(line.name, line.shown, line.target or line.note, f"[{colour}]{line.verdict}[/]")
    console.print(table)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds, at least 15 (default 21)")
    parser.add_argument("--warmup", type=int, default=3, help="rounds that are run and dropped (default 3)")
    parser.add_argument("--starts", type=int, default=9, help="interleaved process starts, at least 7 (default 9)")
    given = parser.parse_args()
    if given.rounds < 15 or given.starts < 7:
        parser.error(f"too few repeats for an interval: got --rounds {given.rounds} --starts {given.starts}.")
    return given


def main() -> int:
    given, console = options(), Console()
    console = console if console.is_terminal else Console(width=110)  # a log file is not 80 columns wide
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    torch.set_num_threads(1)
    where = environment()
    generator = torch.Generator().manual_seed(1)
    shape = (2, SHAPE["batch"], SHAPE["tokens"])
    data = tuple(torch.randint(SHAPE["vocab"], shape, generator=generator))
    models = peers()
    total = 4 * (given.rounds + given.warmup) + 4 + 2 * (given.starts + 1) + given.starts
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("checking that all are equal", total=total)

        def stage(name: str) -> Callable[[], None]:
            progress.update(task, description=name, refresh=True)
            return lambda: progress.advance(task)

        apart = check_equal(models, *data)
        times = measure_steps(models, given.rounds, given.warmup, data, stage("forward + backward"))
        peaks = measure_memory(models, data, stage("peak memory"))
        imports = measure_imports(given.starts, stage("import time"))
        answered = measure_help(given.starts, stage("continua --help"))
    rows = step_rows(times, peaks) + start_rows(imports, answered)
    show(console, rows)
    if answered is None:
        console.print("continua --help does not run yet: not measured.")
    if where["load_average"] > 1:
        console.print(f"the machine was busy (load {where['load_average']}): run it again when it is quiet.")
    path = write(
        "special_case",
        rows,
        environment=where,
        shape=SHAPE,
        peers=ABOUT,
        rounds=given.rounds,
        largest_relative_difference=apart,
        peak_bytes=peaks,
        samples={"cpu_seconds": times, "import_cpu_seconds": imports, "help": answered},
    )
    console.print(f"equal to {apart:.0e}; written to {path.relative_to(Path(__file__).resolve().parent.parent)}")
    return int(any(line.held is False for line in rows))


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)  # of the peers' own code
    sys.exit(main())
