"""The cheat-sheet for training continuous Transformers, taken at its word: a preset beside the recipe for text."""

from dataclasses import dataclass

import torch

from continua.axes import GaussLegendre, Interval, at
from continua.fields import Generated
from continua.flow import Adaptive, Checkpoint, Dopri5, Fixed
from continua.models import Transformer
from continua.models.init import Fan, Scaled, initialise
from continua.optim import AdamW, ByRole, Cosine, Shampoo
from continua.optim.shampoo import library
from continua.recipes.recipe import Bundle, shipped
from continua.recipes.text import about, files, task_of
from continua.settings import NonNegative, Positive, Seed, Size, Whole, checked
from continua.training import Sampled, SpectralNorm, Training


@checked
@dataclass(frozen=True)
class CheatsheetSettings:
    """``tolerance`` is rtol and atol of the solve, ``segment`` the Δz between checkpoints on a depth of length one.

    ``jacobian`` is the weight of the spectral norm of ∂F/∂X, ``modes`` counts the coefficients that the hypernetwork
    emits for a depth, ``lr`` is AdamW's and ``kernel_lr`` Shampoo's. ``depth`` steps of Dopri5 are what the model takes
    natively, where no tolerance is asked for: a cache of keys and values needs known steps. ``text``, ``pairs``, ``d``,
    ``heads``, ``context``, ``batch``, ``decay`` and ``weights`` are as in ``TextSettings``.
    """

    text: str | None = None
    pairs: Whole = 0
    d: Size = 64
    heads: Size = 4
    depth: Size = 4
    modes: Size = 4
    context: Size = 64
    batch: Size = 8
    lr: NonNegative = 2e-3
    kernel_lr: NonNegative = 0.1
    decay: NonNegative = 0.1
    tolerance: Positive = 1e-4
    segment: Positive = 0.1
    jacobian: NonNegative = 1e-4
    weights: Seed = 0  # the seed of the first weights


@shipped
def cheatsheet(settings: CheatsheetSettings) -> Bundle:
    """RK45 to a tolerance, a Jacobian penalty, Gauss nodes for heads, checkpoints, AdamW and Shampoo by role."""
    library()  # refuses before a folder is made
    task = task_of(settings.text, settings.pairs, settings.context, settings.batch)
    adam = AdamW(settings.lr, decay=settings.decay)
    return Bundle(
        model=model_of(settings, task.tokens.size),
        task=task,
        optimiser=ByRole(adam, kernel=Shampoo(settings.kernel_lr), network=adam),
        schedule=Cosine(),
        # integrated with the state it would take derivatives inside the solve, and the checkpoints would go unused
        penalties=settings.jacobian * Sampled(SpectralNorm()),
        training=Training(
            steps=500,
            at=at(z=Adaptive(Dopri5(), rtol=settings.tolerance, atol=settings.tolerance)),
            adjoint=Checkpoint(settings.segment),
        ),
        tokens=task.tokens,
        about=about(task),
        files=files(task),
    )


def model_of(settings: CheatsheetSettings, vocabulary: int) -> Transformer:
    """Heads at Gauss nodes, a depth of length one, and weights whose coefficients over depth a network emits."""
    native = at(d=settings.d, h=GaussLegendre(settings.heads), z=Fixed(settings.depth, Dopri5()))
    model = Transformer.continuous(
        vocab=vocabulary,
        at=native,
        context=settings.context,
        bases={"z": Generated(settings.modes)},
        z=Interval(0.0, 1.0),
    )
    initialise(model, Even(settings.d**-0.5), torch.Generator().manual_seed(settings.weights))
    return model


@dataclass(frozen=True)
class Even:
    """``Scaled`` kernels and tables of this spread: with 1/√d the first logits have spread one.

    A norm divides by the spread of the state: tables of 0.02 make the flow stiff where it starts, and an adaptive
    solve pays for that at every step.
    """

    std: float

    def kernel(self, fan: Fan) -> float:
        """gain/√fan_in."""
        return Scaled().kernel(fan)

    def table(self, own: float) -> float:
        """The given spread."""
        return self.std
