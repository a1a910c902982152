"""``continua finetune``: train a pretrained model on labelled or plain texts, whole or by a low-rank addition."""

import hashlib
import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from continua.cli.again import code_of
from continua.cli.folders import Opened, new_folder, open_model, refuse_taken
from continua.cli.out import writing
from continua.config import to_plain
from continua.convert import to_hf, with_classes
from continua.convert.huggingface import require_expressible
from continua.data import from_file
from continua.data.tokens import Tokeniser
from continua.errors import CheckpointError, ConfigError
from continua.files import fault_of, read_bytes
from continua.models import Transformer, learn_only, lora_of, merged, save_lora, with_lora
from continua.operators import Attention
from continua.optim import AdamW, ByRole, CosineDecay
from continua.tasks import Task, Text, TextClassification, classification
from continua.training import Fitted, Run
from continua.training.fit import train
from continua.training.run import ABOUT, RunHeader
from continua.training.settings import Training

TABLES = (".csv", ".tsv")
TEXTS = (".txt", ".text", ".md")
EPOCHS = 3  # of a table
STEPS = 300  # of a text
WINDOWS = 64  # of held-out text
MEASURED = 10  # times in a run
RATE = 1e-4  # of all weights
LOW_RANK_RATE = 1e-3  # of a low-rank addition, which starts at zero
HEAD = ("readout",)  # what a classifier learns beside a low-rank addition


@dataclass(frozen=True)
class Wishes:
    """The options of the command; None: the usual number."""

    text: str | None = None
    label: str | None = None
    lora: int | None = None
    steps: int | None = None
    batch: int = 16
    lr: float | None = None
    context: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch": 1, "context": 2, "seed": 0, "lora": 1}
        for name, number in least.items():
            given = getattr(self, name)
            if given is not None and given < number:
                remedy = f"Give --{name} {number} or more, or leave it out."
                raise ConfigError(f"--{name} is {number} or more", got=given, remedy=remedy)
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ConfigError("--lr is a positive number", got=self.lr, remedy="Leave it out for the usual one.")


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and which parameters learn beside a low-rank addition."""

    model: Any
    task: Task
    steps: int
    also: tuple[str, ...] = ()


def run(folder: Path, data: Path, wishes: Wishes, place: Path | None, out: Path | None, device: torch.device) -> None:
    """Start, or go on where the run folder has a run; then measure, write and say what to do next."""
    console = Console()
    if out is not None:
        refuse_taken(out)
    _refuse_other(data)
    opened = open_model(folder)
    home = place or Path("runs/finetune") / f"{opened.folder.resolve().name}-{data.stem}"
    job = _job(opened, data, wishes)
    fitted = _fit(job, opened, data, wishes, home, device)
    code = code_of(console, fitted)
    console.print(f"{fitted.ended}: {home}", markup=False, soft_wrap=True)
    if fitted.ended == "interrupted":
        console.print("Go on with the same command.", markup=False)
    if code:
        raise typer.Exit(code)
    best = Run.open(home).model().to(device).eval()
    _say(console, job.task, best)
    written = _write(opened, best, job, home, out)
    does = "classify" if isinstance(job.task, TextClassification) else "generate"
    more = " --texts FILE" if does == "classify" else ""
    console.print(f"written: {written}; use it with: continua {does} {written}{more}", markup=False, soft_wrap=True)


def _refuse_other(data: Path) -> None:
    if data.suffix.lower() not in (*TABLES, *TEXTS):
        remedy = "Give a .csv of texts and labels, or a .txt."
        raise ConfigError("a model learns from a table or a text", got=data.name, remedy=remedy)
    fault = fault_of(data)
    if fault is not None:
        raise ConfigError("there is no such data", got=f"{data} {fault}", remedy="Give --data FILE.csv or FILE.txt.")


def _job(opened: Opened, data: Path, wishes: Wishes) -> Job:
    model = opened.model
    if not isinstance(model, Transformer):
        remedy = "Give an encoder (BERT and its kin) or a decoder (GPT-2, Llama and their kin)."
        raise ConfigError("one stack of layers is fine-tuned", got=type(model).__name__, remedy=remedy)
    tokens = opened.tokens()
    model = merged(model)
    if next(model.parameters()).dtype in (torch.bfloat16, torch.float16):
        model = model.float()  # steps are smaller than half precision can tell
    learn = _of_words if data.suffix.lower() in TEXTS else _of_classes
    made = learn(model, data, tokens, wishes)
    if wishes.lora is None:
        return made
    return Job(with_lora(made.model, wishes.lora, also=made.also, seed=wishes.seed), made.task, made.steps, made.also)


def _of_classes(model: Any, data: Path, tokens: Tokeniser, wishes: Wishes) -> Job:
    """A table: a new head for its labels, unless the model has them."""
    longest = min(model.embed.room or wishes.context, wishes.context)
    task = classification(
        data, tokens, text=wishes.text, label=wishes.label, batch=wishes.batch, longest=longest, seed=wishes.seed
    )
    _refuse_unknown(model, max(int(ids.max()) for ids in (*task.train.ids, *task.held_out.ids)))
    steps = wishes.steps or EPOCHS * task.steps_per_epoch
    return Job(with_classes(model, task.labels, wishes.seed), task, steps, HEAD)


def _of_words(model: Any, data: Path, tokens: Tokeniser, wishes: Wishes) -> Job:
    """A text: a causal model learns its next tokens."""
    if wishes.text is not None or wishes.label is not None:
        raise ConfigError("a text has no columns", got="--text or --label", remedy="Leave them out, or give a .csv.")
    readout = model.readout
    attention = [part for part in model.block.modules() if isinstance(part, Attention)]
    causal = all(part.mask is not None and part.mask.is_causal for part in attention)
    writes = readout is not None and readout.answers_each_token and readout.out == model.embed.vocab
    if not (causal and writes):
        remedy = "Give a decoder with its head of words (GPT-2, Llama and their kin), or a .csv of labelled texts."
        raise ConfigError("a text is learned by a language model", got="a model that writes none", remedy=remedy)
    context = min(model.embed.room or wishes.context, wishes.context)
    task = Text(from_file(data), tokens, context, wishes.batch, WINDOWS)
    _refuse_unknown(model, int(max(task.train.max(), task.validation.max())))
    return Job(model, task, wishes.steps or STEPS)


def _refuse_unknown(model: Any, largest: int) -> None:
    if largest >= (model.embed.vocab or 0):
        got = f"token {largest} of {model.embed.vocab}"
        raise ConfigError("the tokeniser belongs to another model", got=got, remedy="Copy that of the model itself.")


def _fit(job: Job, opened: Opened, data: Path, wishes: Wishes, home: Path, device: torch.device) -> Fitted:
    """Train from where the run is; one that was told otherwise is not gone on with."""
    often = max(1, job.steps // MEASURED)
    training = Training(steps=job.steps, seed=wishes.seed, evaluate_every=often, save_every=often)
    rate = wishes.lr if wishes.lr is not None else RATE if wishes.lora is None else LOW_RANK_RATE
    optimiser = ByRole(AdamW(rate, decay=0.01))
    schedule = CosineDecay()
    told = {
        **asdict(wishes),
        "base": opened.folder.resolve().name,
        "data": hashlib.sha256(read_bytes(data)).hexdigest(),
        "labels": list(job.task.labels) if isinstance(job.task, TextClassification) else None,
    }
    about = {
        "finetune": told,
        "training": to_plain(training),
        "optimiser": to_plain(optimiser),
        "schedule": to_plain(schedule),
    }
    if opened.run is not None and opened.run.about.get("tokens") is not None:
        about["tokens"] = opened.run.about["tokens"]
    if (home / ABOUT).is_file():
        run = Run.open(home)
        _refuse_changed(run, told)
    else:
        run = Run.planned(home, RunHeader(about, new=True))
    return train(job.model, job.task, training, run=run, optimiser=optimiser, schedule=schedule, device=str(device))


def _refuse_changed(run: Run, told: dict[str, Any]) -> None:
    before = run.about.get("finetune")
    kept = before if isinstance(before, dict) else {}
    changed = [name for name in told if kept.get(name) != told[name]]
    if changed:
        got = f"other {', '.join(changed)}"
        remedy = "Give what it was started with, or another run: --folder PATH."
        raise ConfigError(f"{run.folder} has another run", got=got, remedy=remedy)


def _say(console: Console, task: Task, best: Any) -> None:
    """What the best model does with held-out data."""
    scores = task.evaluate(best).values
    said = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    if isinstance(task, TextClassification):
        said += f" ({task.commonest:.4f} by the commonest label alone), {len(task.held_out)} texts"
    console.print(f"held-out: {said}", markup=False, highlight=False, soft_wrap=True)


def _write(opened: Opened, best: Any, job: Job, home: Path, out: Path | None) -> Path:
    """The model as a folder of Hugging Face, where it has a place there; a low-rank addition as a file in the run."""
    if lora_of(best) is not None:
        with writing(home):
            save_lora(learn_only(best, job.also), home / "lora.safetensors")
    opened.write_tokeniser(home)
    plain = merged(best).cpu()
    target = out or home / "model"
    if out is None:
        shutil.rmtree(target, ignore_errors=True)  # of the same run, before
    with new_folder(target) as made:
        try:
            require_expressible(plain)
            bos, eos = opened.ends()
            to_hf(plain, made, bos=bos, eos=eos)
        except CheckpointError:
            plain.save(made)
        opened.write_tokeniser(made)
    return target
