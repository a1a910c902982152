"""The float32 islands of Hugging Face, lifted to the precision of the model.

Some of its modules compute a part in float32 whatever their dtype is, so that a float64 model is right to seven digits
only. ``ISLANDS`` lists every function that ``lifted`` replaces, with the part that it computes in float32; each
replacement is the same formula without the conversion.

Left alone: the buckets of T5's relative bias take a float32 logarithm, but only whole numbers come out of it; its
clamps act on float16 alone.
"""

import math
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


def rms_norm_around_one(self: Any, x: Tensor) -> Tensor:
    """(1 + γ) x / √(⟨x²⟩ + eps)."""
    return (1 + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@torch.no_grad()
def rotary_tables(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position · frequency, twice along e, times what YaRN multiplies."""
    return _tables(*frequencies(self.config, self.config.rope_parameters, int(position_ids.max()) + 1), x, position_ids)


@torch.no_grad()
def rotary_tables_by_layer(self: Any, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
    """The same with rotations of each kind of layers."""
    rope = self.config.rope_parameters[layer_type]
    return _tables(*frequencies(self.config, rope, int(position_ids.max()) + 1), x, position_ids)


def _tables(found: Tensor, gain: float, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angle = position_ids[..., None].to(x.dtype) * found.to(x.dtype)
    angle = torch.cat([angle, angle], -1)
    return angle.cos() * gain, angle.sin() * gain


def frequencies(config: Any, rope: dict[str, Any], length: int) -> tuple[Tensor, float]:
    """Those of ``ROPE_INIT_FUNCTIONS`` in float64, and the factor of cos and sin."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(head * rope.get("partial_rotary_factor", 1.0))
    base, kind, factor = rope["rope_theta"], rope["rope_type"], rope.get("factor")
    i = torch.arange(0, width, 2, dtype=torch.float64)
    if kind == "dynamic":
        room = config.max_position_embeddings
        base = base * (factor * max(length, room) / room - (factor - 1)) ** (width / (width - 2))
    plain = base ** (-i / width)
    if kind in ("default", "dynamic"):
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    trained = rope["original_max_position_embeddings"]
    if kind == "longrope":
        factors = rope["long_factor"] if length > trained else rope["short_factor"]
        gain = rope.get("attention_factor") or math.sqrt(1 + math.log(factor) / math.log(trained))
        return plain / torch.tensor(factors, dtype=torch.float64), gain
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wave = 2 * math.pi / plain
        smooth = ((trained / wave - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0
    ends = [width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
    start, end = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - start) / (end - start)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1


def eager_attention(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling·QKᵀ + mask) V, keys and values repeated for their group of heads; scores bent by ``softcap``."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), weights


def scaled_words(self: Any, ids: Tensor) -> Tensor:
    """√d · E(token)."""
    found = nn.functional.embedding(ids, self.weight, self.padding_idx)
    return found * self.scalar_embed_scale


def sines_and_cosines(self: Any, position_ids: Tensor) -> Tensor:
    """GPT-J's table of all positions, for each sample."""
    i = torch.arange(0, self.pos_embd_dim, 2, dtype=torch.float64)
    angle = torch.arange(self.max_positions, dtype=torch.float64)[:, None] * 10000 ** (-i / self.pos_embd_dim)
    return torch.cat([angle.sin(), angle.cos()], 1).repeat(position_ids.shape[0], 1, 1)


def gptj_attention(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(QKᵀ/√e + mask) V."""
    scores = q @ k.mT / self.scale_attn
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return weights @ v, weights


def mixtral_gate(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest shares of softmax(Gx), summing to one."""
    logits = nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    shares, chosen = logits.softmax(-1).topk(self.top_k, -1)
    return logits, shares / shares.sum(-1, keepdim=True), chosen


def qwen_gate(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, summing to one where that is asked."""
    logits, shares, chosen = mixtral_gate(self, x)
    return logits, shares if self.norm_topk_prob else logits.softmax(-1).gather(-1, chosen), chosen


def sines_of_places(
    self: Any, shape: torch.Size, past_key_values_length: int = 0, position_ids: Tensor | None = None
) -> Tensor:
    """Marian's positions: sines in the first half of d, cosines in the second."""
    if position_ids is None:
        position_ids = torch.arange(past_key_values_length, past_key_values_length + shape[1])
    half = self.embedding_dim // 2
    angle = position_ids[..., None] * 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
    return torch.cat([angle.sin(), angle.cos()], -1).to(self.weight.dtype)


def alibi(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Falcon's slopes times places among the observed tokens, [b·h, 1, s]."""
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    places = ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None, :]
    found = torch.tensor(slopes, dtype=torch.float64)[:, None] * places
    return found.reshape(-1, 1, attention_mask.shape[1]).to(dtype)


def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """x cos + (−x₂, x₁) sin."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    halves = [x.chunk(2, -1) for x in (q, k)]
    q, k = (x * cos + torch.cat([-b, a], -1) * sin for x, (a, b) in zip((q, k), halves, strict=True))
    return q, k


def decoder(family: str, name: str, norm: Callable[..., Any] | None = rms_norm) -> tuple[Island, ...]:
    """The islands that decoders with rotary positions share."""
    module = f"{family}.modeling_{family}"
    norms = () if norm is None else (Island(module, f"{name}RMSNorm.forward", "the whole norm", norm),)
    return (
        *norms,
        Island(module, f"{name}RotaryEmbedding.forward", "frequencies and angles", rotary_tables),
        Island(module, "eager_attention_forward", "the softmax", eager_attention),
    )


ISLANDS = (
    Island("t5.modeling_t5", "T5LayerNorm.forward", "the mean square", rms_norm),
    *decoder("llama", "Llama"),
    Island("vit.modeling_vit", "eager_attention_forward", "the softmax", eager_attention),
    *decoder("mistral", "Mistral"),
    *decoder("qwen2", "Qwen2"),
    *decoder("qwen3", "Qwen3"),
    *decoder("gpt_neox", "GPTNeoX", norm=None),
    *decoder("gemma2", "Gemma2", rms_norm_around_one),
    Island("gemma2.modeling_gemma2", "Gemma2TextScaledWordEmbedding.forward", "the root of d", scaled_words),
    *decoder("phi3", "Phi3"),
    *decoder("smollm3", "SmolLM3"),
    *decoder("mixtral", "Mixtral"),
    Island("mixtral.modeling_mixtral", "MixtralTopKRouter.forward", "the softmax", mixtral_gate),
    *decoder("qwen2_moe", "Qwen2Moe"),
    Island("qwen2_moe.modeling_qwen2_moe", "Qwen2MoeTopKRouter.forward", "the softmax", qwen_gate),
    *decoder("qwen3_moe", "Qwen3Moe"),
    Island("qwen3_moe.modeling_qwen3_moe", "Qwen3MoeTopKRouter.forward", "the softmax", qwen_gate),
    Island("gemma3.modeling_gemma3", "Gemma3RMSNorm.forward", "the whole norm", rms_norm_around_one),
    Island("gemma3.modeling_gemma3", "Gemma3RotaryEmbedding.forward", "frequencies, angles", rotary_tables_by_layer),
    Island("gemma3.modeling_gemma3", "eager_attention_forward", "the softmax", eager_attention),
    Island("gemma3.modeling_gemma3", "Gemma3TextScaledWordEmbedding.forward", "the root of d", scaled_words),
    Island("falcon.modeling_falcon", "FalconRotaryEmbedding.forward", "frequencies and angles", rotary_tables),
    Island("falcon.modeling_falcon", "build_alibi_tensor", "slopes and products, bfloat16 even", alibi),
    Island("gptj.modeling_gptj", "GPTJAttention._get_embed_positions", "frequencies and angles", sines_and_cosines),
    Island("gptj.modeling_gptj", "GPTJAttention._attn", "the scores", gptj_attention),
    Island("modernbert.modeling_modernbert", "ModernBertRotaryEmbedding.forward", "angles", rotary_tables_by_layer),
    Island("modernbert.modeling_modernbert", "eager_attention_forward", "the softmax", eager_attention),
    Island("modernbert.modeling_modernbert", "apply_rotary_pos_emb", "the turn", turned),
    Island("marian.modeling_marian", "MarianSinusoidalPositionalEmbedding.forward", "the sines", sines_of_places),
    Island("opt.modeling_opt", "eager_attention_forward", "the softmax", eager_attention),
    Island("clip.modeling_clip", "eager_attention_forward", "the softmax", eager_attention),
    Island("deit.modeling_deit", "eager_attention_forward", "the softmax", eager_attention),
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
