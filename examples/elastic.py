"""One checkpoint, many sizes, on images: a ViT of handwritten digits that is trained once and run at seven sizes.

    python examples/elastic.py      about a minute on one core; writes runs/elastic-example/pareto.png

The digits come with scikit-learn (pip install 'continua-ml[series]').
"""

import argparse
from pathlib import Path

import torch

import continua as ct
from continua.models import Pixels, Scaled, initialise
from continua.optim import AdamW, ByRole
from continua.tasks import digits

SIZES = {
    "native": {},
    "half width": {"d": 32},
    "half heads": {"h": 2},
    "half depth": {"z": 2},
    "half of all": {"d": 32, "h": 2, "z": 2},
    "3 steps, never trained": {"z": 3},
    "twice the steps": {"z": 8},
}


def main() -> None:
    """Train once, look at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("runs/elastic-example"))
    chosen = parser.parse_args()
    task = digits()
    plain = ct.zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=64, heads=4, depth=4, labels=task.classes)
    initialise(plain, Scaled(), torch.Generator().manual_seed(0))
    model = ct.elastic(plain)
    images = task.example(0, 0).batch
    assert torch.equal(model(images), plain(images)), "on its own grid nothing has changed"
    ct.fit(model, task, optimiser=ByRole(AdamW(2e-3)), elastic=ct.Elastic(), steps=chosen.steps)
    model.eval()
    for name, sizes in SIZES.items():
        found = task.evaluate(model.at(**sizes)).values
        print(f"{name:24s} {100 * found['accuracy']:5.1f} % right, loss {found['loss']:.3f}")
        assert found["accuracy"] > 0.75 or chosen.steps < 800, name
    drew = ct.Elastic().over(model).drew
    front = ct.pareto(model, task, trained=drew)
    half = front.pick(flops=front.points[0].flops // 2)
    print(f"the best size at half of the native FLOPs: {half.name}")
    print(front.plot(chosen.out / "pareto.png", "A ViT of digits, trained once"))


if __name__ == "__main__":
    main()
