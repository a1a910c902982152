"""Irregular series: MNIST-1D, JapaneseVowels, Beijing PM2.5, co2 and nafld2, with peers in the same run.

    python benchmarks/series.py                     # 3 seeds, about half an hour of CPU time, one thread
    python benchmarks/series.py --only vowels       # one of mnist1d, vowels, beijing, co2, nafld2
    python benchmarks/series.py --quick             # a smoke run of a few seconds each

Every training has a budget of CPU seconds. Two learning rates are tried on a part of the training set, for a quarter
of the budget, and measured on the rest of it; the better one then trains with three seeds on all of it. Peers have the
same batches, changes of them (thinning, rolling, trends) and loss. Finished runs are kept in
``results/series-runs.jsonl`` and not repeated; delete the file to start anew.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import environment, write
from series_classes import run_mnist1d, run_vowels
from series_forecasts import run_beijing, run_co2, run_nafld2
from series_runs import RATES, SEEDS, Runs

PARTS = {
    "mnist1d": run_mnist1d,
    "vowels": run_vowels,
    "beijing": run_beijing,
    "co2": run_co2,
    "nafld2": run_nafld2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(chosen.quick)
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            rows = part(runs)
            for row in rows:
                print(f"{row.name}: {row.shown} (wanted {row.target or 'nothing'}) {row.verdict}  {row.note}")
            if not chosen.quick:
                write("series", rows, part=True, environment=environment(), seeds=list(SEEDS), rates=list(RATES))
    if chosen.quick:
        runs.path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
