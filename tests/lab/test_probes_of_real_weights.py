"""What the probes say of published models."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

import continua as ct
from continua.cli.dynamics import read
from continua.lab.probes.dynamics import dynamics, look
from continua.lab.probes.iterate import iterate, substeps
from continua.lab.probes.ladder import ladder
from tools import real_models
from tools.packages import Unavailable

QUIET = Console(quiet=True)


def probed(folder):
    """The folder's model on the texts that ``continua inspect --dynamics`` reads: states, probes, names of tokens."""
    model = ct.from_hf(folder, dtype=torch.float64)
    batch, names = read(QUIET, model, folder, None)
    seen = look(model, batch)
    return seen, dynamics(seen), names


def had(make, *words) -> Path:
    try:
        return make(*words)
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.mark.spec("L8")
def test_minilm():
    """Post-norm: [CLS] is the sink of every text; tokens come closer layer by layer, and do not collapse."""
    pytest.importorskip("tokenizers")
    seen, found, names = probed(had(real_models.minilm))
    assert [names[b][t] for b, t in found.sinks] == ["[CLS]"] * 4
    assert found.post_norm
    jumps = [move.jump for move in found.moves]
    assert all(0.45 < jump < 0.65 for jump in jumps[:5])  # the last layer turns further: it makes the embedding
    assert 0.8 < jumps[5] < 1.1
    energies = [state.energy for state in found.states]
    assert energies == sorted(energies)
    assert 0.3 < found.states[-1].cosine < 0.5
    assert found.states[-1].clusters > 0.7 * found.tokens / found.texts
    assert max(max(move.fit) for move in found.moves) < 0.4  # no head is a softmax of cosines
    assert ladder(seen).top > 1 - 1e-12


@pytest.mark.spec("L8")
def test_rxnmapper_beyond_its_depth():
    """One layer: jumps shrink, predictions outlive the depth, and 48 times do not make one cluster of its tokens."""
    seen, found, _ = probed(had(real_models.rxnmapper))
    jumps = [move.jump for move in found.moves]
    assert jumps == sorted(jumps, reverse=True)
    assert jumps[0] > 0.9 > 0.3 > jumps[-1]
    again = iterate(seen, steps=48)
    assert again.beats[12].distance == 0.0
    assert 0.97 < again.rate < 1.0
    assert again.beats[48].cosine < 0.3
    assert again.beats[48].clusters > 20
    assert again.beats[24].agreement > 0.9 > again.beats[48].agreement > 0.5
    halves = substeps(seen, parts=(1, 2, 4))
    assert halves[2].change < halves[1].change
    assert 0.3 < halves[2].distances[-1] < 0.7
    assert halves[2].agreement > 0.95


@pytest.mark.spec("L8")
def test_fine_tuning_clusters_the_last_layers():
    """rxnfp's pair on the same reactions: alike in the first half, then the tuned one gathers its tokens."""
    (_, before, _), (_, after, _) = (probed(had(real_models.rxnfp, which)) for which in ("pretrained", "tuned"))
    for depth in range(6):
        assert after.states[depth].cosine == pytest.approx(before.states[depth].cosine, abs=0.06)
    assert after.states[-1].cosine > before.states[-1].cosine + 0.15
    assert after.states[-1].clusters < 0.6 * before.states[-1].clusters
    assert after.states[-1].rank < before.states[-1].rank
    assert max(move.jump for move in after.moves) > 1.3 * max(move.jump for move in before.moves)


@pytest.mark.slow(reason="135 million weights")
@pytest.mark.spec("L8")
def test_smollm2():
    """Pre-norm and causal: every text's first token is a sink; the middle layers turn tokens by 0.2 to 0.3 rad."""
    pytest.importorskip("transformers")
    seen, found, _ = probed(had(real_models.smollm2))
    assert not found.post_norm
    assert {(b, 0) for b in range(4)} <= set(found.sinks)
    jumps = [move.jump for move in found.moves]
    assert all(0.15 < jump < 0.35 for jump in jumps[2:24])
    assert found.states[-1].norm > 5 * found.states[2].norm
    steps = ladder(seen)
    assert steps.top > 1 - 1e-12
    assert all(layer["feed-forward"].r2 > 1 - 1e-12 for layer in steps.layers)
