"""The float32 islands of Hugging Face, lifted to the precision of the model.

Some of its modules compute a part in float32 whatever their dtype is, so that a float64 model is right to seven digits
only. ``ISLANDS`` lists every function that ``lifted`` replaces, with the part that it computes in float32; each
replacement is the same formula without the conversion.

Left alone: the buckets of T5's relative bias take a float32 logarithm, but only whole numbers come out of it; its
clamps act on float16 alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Island(NamedTuple):
    """Where it is (``transformers.models.…``), what is float32 there, and the function without."""

    module: str
    name: str
    what: str
    instead: Callable[..., Any]


def rms_norm(self: Any, x: Tensor) -> Tensor:
    """γ x / √(⟨x²⟩ + eps)."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


@torch.no_grad()
def rotary_tables(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position · base^(−2i/e), twice along e."""
    config = self.config
    i = torch.arange(0, config.head_dim, 2, dtype=x.dtype)
    angle = position_ids[..., None].to(x.dtype) / config.rope_parameters["rope_theta"] ** (i / config.head_dim)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def eager_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None, **rest: Any
) -> tuple[Tensor, Tensor]:
    """softmax(scaling·QKᵀ + mask) V, keys and values repeated for their group of heads."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), weights


ISLANDS = (
    Island("t5.modeling_t5", "T5LayerNorm.forward", "the mean square", rms_norm),
    Island("llama.modeling_llama", "LlamaRMSNorm.forward", "the whole norm", rms_norm),
    Island("llama.modeling_llama", "LlamaRotaryEmbedding.forward", "frequencies and angles", rotary_tables),
    Island("llama.modeling_llama", "eager_attention_forward", "the softmax", eager_attention),
    Island("vit.modeling_vit", "eager_attention_forward", "the softmax", eager_attention),
)


@contextmanager
def lifted(islands: tuple[Island, ...] = ISLANDS) -> Iterator[tuple[Island, ...]]:
    """Replace the functions of ``islands`` in all models, until the end of the block; yield what was replaced."""
    with ExitStack() as stack:
        for island in islands:
            owner: Any = import_module(f"transformers.models.{island.module}")
            *path, name = island.name.split(".")
            for step in path:
                owner = getattr(owner, step)
            stack.enter_context(patch.object(owner, name, island.instead))
        yield islands


class Float32Shapes(TorchDispatchMode):
    """Collects the shapes of all float32 tensors that are computed in the block, gradients included."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at its results."""
        made = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(x.shape) for x in tree_leaves(made) if isinstance(x, Tensor) and x.dtype == torch.float32}
        return made
