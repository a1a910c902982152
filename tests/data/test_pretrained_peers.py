"""The peers of benchmarks/pretrained.py, on a small BERT of random weights: whole, they are the model itself."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lazy import Lazily

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import pretrained_language as language
import pretrained_peers as peers
import pretrained_slices as slices
from pretrained_texts import Tokens, embedded, likeness

transformers = Lazily("transformers")
D, HEADS, NODES, LAYERS = 16, 4, 24, 3


@pytest.fixture(scope="module")
def full() -> peers.Calibrated:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=NODES,
        initializer_range=0.4, max_position_embeddings=12,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):  # no absorbed number is one or nothing
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias)
    ids = torch.randint(50, (40, 10))
    there = torch.arange(10) < torch.randint(4, 11, (40, 1))
    return peers.Calibrated.of(model, [Tokens(ids, there, torch.arange(40))])


def cosine(full: peers.Calibrated, states: Any) -> float:
    """To the full model."""
    return likeness(embedded(states, full.batches), embedded(peers.states_of(full.model), full.batches))


@pytest.mark.spec("B11")
@pytest.mark.parametrize("method", peers.METHODS, ids=lambda method: method.name)
def test_nothing_removed_is_the_model_itself(full: peers.Calibrated, method: peers.Method) -> None:
    assert cosine(full, peers.states_of(peers.pruned(full, method, NODES, HEADS))) > 1 - 1e-6
    small = peers.pruned(full, method, NODES // 2, HEADS // 2)
    assert small.encoder.layer[0].output.dense.weight.shape == (D, NODES // 2)
    assert small.encoder.layer[0].attention.self.query.weight.shape == (D // 2, D)
    assert 0 < cosine(full, peers.states_of(small)) < 1 - 1e-3


@pytest.mark.spec("B11")
def test_a_refit_finds_nodes_that_are_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs that are always equal: one of them can do the work of both, with the sum of the weights."""
    monkeypatch.setattr(peers, "RIDGE", 1e-9)
    weight = torch.randn(3, 4, dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64)
    seen = peers.Moments(torch.zeros(5, 5, dtype=torch.float64))
    inputs = torch.randn(4000, 3)
    seen.add(inputs[:, [0, 1, 2, 2]])
    fit, shift = peers.fitted(weight, bias, torch.tensor([0, 1, 2]), seen)
    assert torch.allclose(fit[:, 2], weight[:, 2:].sum(1), atol=1e-6)
    assert torch.allclose(fit[:, :2], weight[:, :2], atol=1e-6)
    assert torch.allclose(shift, bias, atol=1e-6)


@pytest.mark.spec("B11")
def test_a_refit_helps_what_it_calibrates_on(full: peers.Calibrated) -> None:
    plain, fitted = (
        cosine(full, peers.states_of(peers.pruned(full, method, NODES // 2)))
        for method in (peers.METHODS[2], peers.METHODS[6])
    )
    assert fitted > plain


@pytest.mark.spec("B11")
def test_all_axes_of_the_stream_are_the_model_itself(full: peers.Calibrated) -> None:
    for refit in (False, True):
        assert cosine(full, slices.sliced(full.model, full.batches, D, refit)) > 1 - 1e-6
    # a mean was subtracted: one axis is empty
    assert cosine(full, slices.sliced(full.model, full.batches, D - 1)) > 1 - 1e-6
    narrow, fitted = (cosine(full, slices.sliced(full.model, full.batches, D // 2, refit)) for refit in (False, True))
    assert narrow < 1 - 1e-3
    assert fitted > narrow


@pytest.mark.spec("B11")
def test_layers_are_dropped_where_it_hurts_least(full: peers.Calibrated) -> None:
    wanted = embedded(peers.states_of(full.model), full.batches)
    found = peers.dropped(full, LAYERS - 1, False, wanted)
    assert len(found.model.encoder.layer) == LAYERS - 1
    assert found.cosine == cosine(full, peers.states_of(found.model))
    last = peers.dropped(full, LAYERS, False, wanted)
    assert last.cosine > 1 - 1e-6
    assert peers.dropped(full, LAYERS - 1, True, wanted).cosine > 0


@pytest.mark.spec("B11")
@pytest.mark.parametrize("method", peers.METHODS, ids=lambda method: method.name)
def test_a_small_llama_leaves_the_full_one_as_it_was(method: peers.Method) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=D, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=NODES, initializer_range=0.4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    batch = Tokens(torch.randint(50, (1, 40)), torch.ones(1, 40, dtype=torch.bool), torch.tensor([0]))
    maps = [layer.mlp.down_proj for layer in model.model.layers]
    seen = peers.moments(maps, lambda ids, there: model.model(ids).last_hidden_state, [batch])
    before = language.perplexity(lambda ids: model(ids).logits, [batch])
    small = language.pruned(model, seen, method, NODES // 2)
    whole = language.pruned(model, seen, method, NODES)
    assert small.model.layers[1].mlp.gate_proj.out_features == NODES // 2
    assert language.perplexity(lambda ids: whole(ids).logits, [batch]) == pytest.approx(before, rel=1e-4)
    assert language.perplexity(lambda ids: small(ids).logits, [batch]) != pytest.approx(before, rel=1e-3)
    assert language.perplexity(lambda ids: model(ids).logits, [batch]) == before
