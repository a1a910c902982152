"""Does the class token explain what separates ours from the ViT on digits? The ViT with it, and with a mean instead.

    python benchmarks/vision_tokens.py          # eight minutes of CPU time
    python benchmarks/vision_tokens.py --quick  # a smoke run of a few steps, nothing is written

Ours reads its answer from the mean of all tokens. Here the ViT of ``vision_starts.py``, with the start that was chosen
there, does so too, and takes turns with itself as it is; every digit is held out once. Finished splits are kept in
``results/vision-tokens.jsonl``.
"""

import argparse
import json
import os
import statistics

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from torch import nn
from vision import finished
from vision_folds import FOLDS, with_error
from vision_peers import bare
from vision_starts import Changes, Found, as_convolution, trained

KEPT = RESULTS / "vision-tokens.jsonl"
CLASS, MEAN = "its class token", "the mean of its tokens"


def averaged(model: nn.Module) -> None:
    """Classes are read from the mean over all tokens, the class token among them."""
    model.vit.readout.first = False
    model.vit.readout.pool = True


WAYS: dict[str, dict[str, Changes]] = {
    "vit": {CLASS: (bare, as_convolution), MEAN: (bare, as_convolution, averaged)},
}


def rows_of(splits: list[Found]) -> list[Row]:
    """Percent right with the mean, over all digits; the difference is with its error from split to split."""
    by_mean, by_class = ([split[f"vit: {way}"]["accuracy"] for split in splits] for way in (MEAN, CLASS))
    rows = []
    for key in by_mean[0]:
        own, token = [one[key] for one in by_mean], [one[key] for one in by_class]
        lead = [a - b for a, b in zip(own, token, strict=True)]
        shown = f"{key}×{key} pixels" if float(key) > 0 else f"{-100 * float(key):.0f} % of pixels missing"
        note = f"{CLASS} {statistics.mean(token):.1f}; difference {with_error(lead)}"
        rows.append(
            Row(f"all digits, ViT by {MEAN}, {shown}", statistics.mean(own), min(own), max(own), "%", note=note)
        )
    return rows


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps of one split, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.quick:
        rows_of([trained(0, WAYS, True, True)])
        return
    done = {line["fold"] for line in finished(KEPT)}
    for fold in sorted(set(range(FOLDS)) - done):
        found = trained(fold, WAYS, True, False)
        with KEPT.open("a") as kept:
            kept.write(json.dumps({"fold": fold, "found": found}) + "\n")
    rows = rows_of([line["found"] for line in finished(KEPT)])
    for row in rows:
        print(f"{row.name}: {row.shown}  {row.note}")
    print(write("vision_tokens", rows, environment=environment(), splits=FOLDS))


if __name__ == "__main__":
    main()
