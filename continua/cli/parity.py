"""Parity rows: Continua beside the reference implementations, outputs and all parameter gradients."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from continua.axes import counting
from continua.convert import from_hf, from_torch
from continua.convert.huggingface import hf_names
from continua.convert.torch_nn import torch_names
from continua.models import Batch
from continua.operators import Context


@dataclass(frozen=True)
class Parity:
    """Largest difference over the largest entry."""

    name: str
    dtype: torch.dtype
    output: float
    gradient: float


def rows() -> Iterator[Parity]:
    """Compare every reference in float64 and float32; Hugging Face rows need ``transformers``."""
    for dtype in (torch.float64, torch.float32):
        yield from (row(dtype) for row in (_attention, _encoder, _decoder))
        try:
            import transformers
        except ImportError:
            continue
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        yield _hugging_face("GPT-2", _tiny_gpt2(transformers), dtype)
        yield _hugging_face("BERT (masked LM)", _tiny_bert(transformers), dtype)


def _stir(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Move every parameter: zero biases and unit scales would hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module.to(dtype).train()


def _state(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _attention(dtype: torch.dtype) -> Parity:
    mha = _stir(nn.MultiheadAttention(32, 4, batch_first=True), dtype)
    x = _state(2, 9, 32, dtype=dtype)
    return _compare("MultiheadAttention", mha, lambda: x + mha(x, x, x, need_weights=False)[0], lambda model: model(x))


def _encoder(dtype: torch.dtype) -> Parity:
    layer = _stir(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), dtype)
    x = _state(2, 9, 32, dtype=dtype)
    causal = nn.Transformer.generate_square_subsequent_mask(9, dtype=dtype)
    return _compare(
        "TransformerEncoderLayer, post-norm, causal",
        layer,
        lambda: layer(x, src_mask=causal),
        lambda model: model(Batch(x, pairs=causal)),
    )


def _decoder(dtype: torch.dtype) -> Parity:
    layer = _stir(nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True), dtype)
    x = _state(2, 9, 32, dtype=dtype)
    memory = _state(2, 6, 32, dtype=dtype, seed=2)
    context = Context(memory, counting(6, memory))
    return _compare(
        "TransformerDecoderLayer, pre-norm",
        layer,
        lambda: layer(x, memory),
        lambda model: model.run(x, context=context)[0],
    )


def _compare(name: str, reference: nn.Module, theirs: Callable[[], Tensor], ours: Callable[[Any], Tensor]) -> Parity:
    model = from_torch(reference)
    names = torch_names(reference)
    return _measure(name, theirs(), ours(model), reference, lambda: names.store(_gradients(model)))


def _tiny_gpt2(transformers: Any) -> nn.Module:
    sizes = {"vocab_size": 96, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 24}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return transformers.GPT2LMHeadModel(config)


def _tiny_bert(transformers: Any) -> nn.Module:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **quiet, intermediate_size=64, max_position_embeddings=24)
    return transformers.BertForMaskedLM(config)


def _hugging_face(name: str, reference: Any, dtype: torch.dtype) -> Parity:
    _stir(reference, dtype)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = from_hf(folder)
        names = hf_names(folder)
    tokens = torch.randint(96, (2, 17), generator=torch.Generator().manual_seed(3))
    theirs = reference(tokens).logits
    return _measure(name, theirs, model(tokens), reference, lambda: names.store(_gradients(model)))


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _measure(
    name: str, theirs: Tensor, ours: Tensor, reference: nn.Module, gradients: Callable[[], Mapping[str, Tensor]]
) -> Parity:
    """Send one random covector back through both and compare gradient by gradient.

    A gradient that is zero by symmetry (that of a key bias) is measured against the largest of all.
    """
    covector = _state(*theirs.shape, dtype=theirs.dtype, seed=4)
    theirs.backward(covector)
    ours.backward(covector)
    wanted = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    floor = 1e-3 * max(g.abs().max().item() for g in wanted.values())
    found = gradients()
    worst = max((found[n] - g).abs().max().item() / max(floor, g.abs().max().item()) for n, g in wanted.items())
    output = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    return Parity(name, theirs.dtype, output, worst)
