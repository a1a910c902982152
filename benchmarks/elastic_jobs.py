"""The trainings of ``elastic.py``: sizes, models, optimisers, what is taught, and what is measured of each."""

import itertools
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from continua.axes import at
from continua.convert import elastic
from continua.fields import counted
from continua.flow import Fixed
from continua.lab.cost.complexity import predict
from continua.lab.cost.tolerance import depth_front
from continua.models import Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.init import GPT2Init, initialise
from continua.models.readout import Readout
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.elastic import STEPS as RECIPE_STEPS
from continua.recipes.elastic import ElasticSettings, afterwards, corrected, growth, lessons, optimiser
from continua.tasks import Characters, Text, python_source
from continua.training import Afterwards, Elastic, Growth, fit
from continua.training.sizes import native_sizes, never_joined

D, H, E, Z, CONTEXT, BATCH = 128, 4, 32, 4, 128, 16
STEPS, LONGER, WINDOWS = 800, RECIPE_STEPS, 600
USUAL = ElasticSettings()
LR, MUON_LR = 4e-3, 0.02  # of separate models, times a factor; the elastic training has the rates of the recipe
FACTORS = (1.0, 2.0)
OLD_DEEP = 0.28  # share of lessons at twice the steps, which version 0.1 had
SIZES = {  # d, h, z; m = 4d and e = 32 always
    "native": (128, 4, 4),
    "half width": (64, 4, 4),
    "half heads": (128, 2, 4),
    "half depth": (128, 4, 2),
    "half of all": (64, 2, 2),
    "a quarter of all": (32, 1, 1),
    "5/8 width": (80, 4, 4),
    "3 steps": (128, 4, 3),
    "3 heads": (128, 3, 4),
    "one step": (128, 4, 1),
}
MORE = {"half width and heads": (64, 2, 4), "half width and depth": (64, 4, 2), "half heads and depth": (128, 2, 2),
        "5/8 width, 3 heads, 3 steps": (80, 3, 3)}  # fmt: skip
CORNERS = {"quarter width": (32, 4, 4), "one head": (128, 1, 4), "one head and one step": (128, 1, 1)}  # one seed
EVERY = {**SIZES, **MORE, **CORNERS}
TWELVE = [*(name for name in SIZES if name not in ("a quarter of all", "one step")), *MORE]  # what is timed
FINER = {"twice the steps": {"z": 8}, "twice the width": {"d": 256}}
JOINED = {f"steps {'+'.join(map(str, lengths))}": lengths for lengths in ((2, 1, 1), never_joined(4), (1, 3), (3, 1))}
PATIENT = ("quarter width", (1200, 2000))  # the corner that is furthest above the line, and longer trainings of it
GRID = {"d": (32, 48, 64, 80, 96, 112, 128, 192, 256), "h": (1, 2, 3, 4, 8), "z": (1, 2, 3, 4, 8)}  # 225 sizes
SHARED = ("elastic", "grown")  # kinds of trainings that grow
NEW, OLD, EQUAL = "growth", "adamw", "equal"
NAMES = {NEW: "elastic", OLD: "elastic_adamw", EQUAL: "elastic_equal"}


@dataclass(frozen=True)
class Job:
    """One training: ``kind`` is separate, elastic, grown (without lessons) or longer (plain, as many steps)."""

    kind: str
    size: str
    seed: int
    steps: int
    muon: bool = True  # for the kernels
    factor: float = 1.0  # of the learning rates


def optimiser_of(muon: bool, factor: float = 1.0) -> ByRole:
    """Muon for the kernels and AdamW for the rest, or AdamW alone."""
    rest = AdamW(factor * LR, decay=USUAL.decay)
    return ByRole(rest, kernel=Muon(factor * MUON_LR)) if muon else ByRole(rest)


def task_of() -> Text:
    """Python's own source."""
    corpus = python_source()
    return Text(corpus, Characters.of(corpus.train + corpus.validation), CONTEXT, BATCH)


def model_of(size: tuple[int, int, int], vocabulary: int, seed: int) -> Transformer:
    """A plain GPT of this size."""
    d, h, z = size
    axes, native = discrete_axes(d, h, 4 * d, z, E)
    weights = counted(axes, z)
    fixed = weights.autonomous()
    block = pre_norm(
        (Attention(weights, mask=Causal()), Pointwise(weights, GELU(tanh=True))), lambda: LayerNorm(weights)
    )
    readout = Readout(fixed, vocabulary, before=(LayerNorm(fixed),), tied=True)
    model = Transformer(axes, native, Tokens(fixed, vocabulary, Learned(fixed, CONTEXT)), block, readout)
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


@dataclass(frozen=True)
class Laws:
    """The lessons of a training, its growth, and what learns afterwards."""

    elastic: Elastic | None = None
    grow: Growth | None = None
    afterwards: Afterwards | None = None


def laws(job: Job, model: Transformer) -> Laws:
    """What a training teaches beside its own size."""
    if job.kind not in SHARED:
        return Laws()
    if not job.muon:
        return Laws(Elastic(deep=OLD_DEEP))
    grow = growth(model.native, USUAL)
    return (
        Laws(lessons(USUAL), grow, afterwards(native_sizes(model), USUAL)) if job.kind == "elastic" else Laws(grow=grow)
    )


def prepared(job: Job, vocabulary: int) -> Transformer:
    """The model of a training; Muon's elastic one has corrections for sizes below half."""
    model = model_of(EVERY[job.size], vocabulary, job.seed)
    if job.kind not in SHARED:
        return model
    made = elastic(model)
    return corrected(made, USUAL) if job.kind == "elastic" and job.muon else made


def work(job: Job) -> dict[str, Any]:
    """Train and measure."""
    torch.set_num_threads(1)
    task = replace(task_of(), limit=WINDOWS)
    model = prepared(job, task.tokens.size)
    own = laws(job, model)
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser(USUAL) if job.muon and job.kind in SHARED else optimiser_of(job.muon, job.factor),
        steps=job.steps,
        seed=job.seed,
        evaluate_every=job.steps,
        elastic=own.elastic,
        grow=own.grow,
        afterwards=own.afterwards,
    )
    found: dict[str, Any] = {**asdict(job), "cpu": time.process_time() - start, "losses": {}}
    found["weights"] = sum(parameter.numel() for parameter in model.parameters())
    model.eval()
    views: dict[str, Any] = {job.size: model}
    if job.kind == "elastic":
        views = {name: model.at(**dict(zip("dhz", size, strict=True))) for name, size in EVERY.items()}
        views |= {name: model.at(**wish) for name, wish in FINER.items()}
        views |= {name: model.at(z=Fixed(len(own), lengths=own)) for name, own in JOINED.items()}
        few = replace(task, limit=64)
        found["depth"] = [asdict(each) for each in depth_front(model, few)] if job.seed == 0 else []
        found["grid"] = grid_of(model, few) if job.seed == 0 and job.steps >= STEPS else []
    for name, view in views.items():
        found["losses"][name] = task.evaluate(view).main
    return found


def grid_of(model: Transformer, task: Text) -> list[dict[str, Any]]:
    """Loss and FLOPs of many sizes."""
    found = []
    for sizes in itertools.product(*GRID.values()):
        wish = at(**dict(zip(GRID, sizes, strict=True)))
        flops = predict(model, 1, CONTEXT, wish).forward
        found.append({"sizes": sizes, "loss": task.evaluate(model.at(wish)).main, "flops": flops})
    return found


def jobs(variant: str, seeds: int, steps: int) -> list[Job]:
    """What does not wait for others, seed by seed."""
    muon = variant != OLD
    longer = steps if variant in (EQUAL, OLD) else round(LONGER / STEPS * steps)
    every = []
    for seed in range(seeds):
        every.append(Job("elastic", "native", seed, longer, muon))
        if variant == NEW and seed == 0:
            every += [Job("grown", "native", seed, longer, muon), Job("longer", "native", seed, longer, muon)]
            every += [Job("separate", name, seed, steps, muon, factor) for name in CORNERS for factor in FACTORS]
            corner, lengths = PATIENT
            every += [Job("separate", corner, seed, own * steps // STEPS, muon, FACTORS[-1]) for own in lengths]
        factors = FACTORS if seed == 0 else FACTORS[:1]
        every += [Job("separate", name, seed, steps, muon, factor) for name in SIZES for factor in factors]
    return every


def best_factors(lines: Iterable[dict[str, Any]], steps: int, muon: bool) -> dict[str, float]:
    """The better learning rate of each size, on the first seed."""
    own = [line for line in lines if (line["kind"], line["seed"], line["steps"], line["muon"])
           == ("separate", 0, steps, muon)]  # fmt: skip
    by = {(line["size"], line["factor"]): line["losses"][line["size"]] for line in own}
    named = (*SIZES, *CORNERS)
    return {name: min(FACTORS, key=lambda factor: by.get((name, factor), float("inf"))) for name in named}


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def key(job: Job) -> tuple[Any, ...]:
    """What makes two trainings the same."""
    return tuple(asdict(job).values())
