"""Calibration without training: exact at the native size, orders that nest, refits that are least squares."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

import continua as ct
from continua.config import from_plain, to_plain
from continua.convert.moments import collected, leading, ordered
from continua.errors import CheckpointError, ConfigError
from continua.fields import Expansion, RefitRanks
from continua.models import Batch
from continua.operators import Attention, Pointwise, Refit
from continua.operators.refit import RIDGE
from tests.cases import MODELS
from tests.measure import EXACT, gap
from tests.packages import folder_of
from tests.refusals import refused
from tests.sentences import docstrings, encoded
from tools.packages import MINILM

WHOLE = RefitRanks(m=64, h=64, d=64)
FAMILIES = [
    "gpt2", "bert, masked LM", "albert", "vit", "t5", "llama", "llama, tied", "encoder-decoder", "grouped heads, ALiBi",
]  # fmt: skip


def words(count: int = 24, vocab: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (4, count), generator=torch.Generator().manual_seed(seed))


def batches(name: str) -> list[Batch]:
    """The batch of a case, and some others of its kind where it reads words."""
    if MODELS[name].batch.__name__ == "words":
        return [Batch(words(16, seed=seed)) for seed in range(3)]
    return [MODELS[name].batch()] * 3


def gpt(heads: int = 4, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return ct.zoo.gpt2(vocab=11, d=16, heads=heads, depth=2, context=32, m=24).double()


@pytest.mark.spec("B11", "B2")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_calibrated_model_is_exact_at_its_own_size(name, tmp_path) -> None:
    model = MODELS[name].model().double()
    data = batches(name)
    made = ct.elastic(model, calibrate=data)
    wanted = model(data[0])
    assert gap(made(data[0]), wanted) <= EXACT
    back = ct.discretise(made)
    ours = back.state_dict()
    assert all(torch.equal(ours[key], tensor) for key, tensor in model.state_dict().items())
    view = made.at(m=6, h=1) if name != "grouped heads, ALiBi" else made.at(m=6)
    assert gap(ct.discretise(view)(data[0]), view(data[0])) <= EXACT
    assert gap(view.held()(data[0]), view(data[0])) <= EXACT
    again = ct.load(made.save(tmp_path / "saved"))
    assert gap(again.at(view.discretisation)(data[0]), view(data[0])) <= EXACT


@pytest.mark.spec("B11")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "vit"])  # whose pictures are in double
def test_the_native_size_is_what_it_was_to_the_bit_in_single_precision(name) -> None:
    """Weights stay where they are, so sums are taken in the order in which they were."""
    model = MODELS[name].model().float().eval()
    data = batches(name)
    made = ct.elastic(model, calibrate=data)
    assert torch.equal(made(data[0]), ct.lift(model)(data[0]))
    assert all(torch.equal(value, made.state_dict()[key]) for key, value in model.state_dict().items())


def moved(model: Any) -> Any:
    """The model as checkpoints of before have it: weights and moments stand in the order of each layer."""
    plain = _rewritten(to_plain(model))
    made = from_plain(plain).to(next(model.parameters()))
    made.load_state_dict(model.state_dict())
    with torch.no_grad():
        for operator in (one for one in made.modules() if isinstance(one, Attention | Pointwise)):
            own = operator.refit
            letter = own.letters[0]
            shared = {"k", "v", "bk", "bv"} if letter == "h" and operator.groups is not None else set()
            for name, field in operator.named_children():
                if isinstance(field, Expansion) and letter in field.letters and name not in shared:
                    values = field.coefficients if "z" in field.letters else field.coefficients[None]
                    _move(values, [k for k in field.letters if k != "z"].index(letter), own.order)
            block = own.count // own.order.shape[1]
            inner = (own.order.long()[..., None] * block + torch.arange(block)).flatten(1)
            for buffer in (own.factor, own.top, own.rest, own.spread, own.mean):
                _move(buffer, 0, inner)
    return made


def _rewritten(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_rewritten(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    made = {key: _rewritten(value) for key, value in plain.items()}
    return {key: value for key, value in made.items() if key != "stays"} if made.get("kind") == "RefitRanks" else made


def _move(values: torch.Tensor, dim: int, order: torch.Tensor) -> None:
    for layer, own in zip(values, order.long(), strict=True):
        layer.copy_(layer.index_select(dim, own))


@pytest.mark.spec("B11", "B13")
@pytest.mark.parametrize("name", ["gpt2", "bert, masked LM", "albert", "llama"])
def test_checkpoints_whose_weights_were_moved_still_mean_the_same(name, tmp_path) -> None:
    data = batches(name)
    made = ct.elastic(MODELS[name].model().double(), calibrate=data)
    old = ct.load(moved(made).save(tmp_path / "old"))
    for size in ({}, {"m": 6}, {"h": 1}, {"d": 4, "m": 6, "h": 1}, {"z": 1}):
        wanted = made.at(**size)(data[0])
        assert gap(old.at(**size)(data[0]), wanted) <= EXACT
        assert gap(ct.discretise(old, **size)(data[0]), wanted) <= EXACT
        theirs = ct.discretise(made, **size).state_dict()
        ours = ct.discretise(old, **size).state_dict()
        assert all(gap(ours[key], value) <= EXACT for key, value in theirs.items())


@pytest.mark.spec("B11")
def test_a_refit_is_the_least_squares_map_of_the_inputs_that_are_kept() -> None:
    """With all moments, W_S + W_R Σ_RS (Σ_SS + λ)⁻¹ and its bias, from activations themselves."""
    model = gpt()
    data = [words(seed=seed) for seed in range(4)]
    made = ct.elastic(model, calibrate=data, ranks=WHOLE)
    feed = next(module for module in made.modules() if isinstance(module, Pointwise))
    sums = collected(made, data).of(feed)[1]
    mean, second = sums.moments(centred=True)
    grids = made.structure(ct.at(m=10)).grids
    kept = torch.from_numpy(feed.refit.kept(feed.refit.keys(grids), layer=1))
    left = torch.tensor([i for i in range(24) if i not in kept.tolist()])
    system = second[kept][:, kept] + RIDGE * second.diagonal().mean() * torch.eye(10)
    part = torch.linalg.solve(system, second[kept][:, left]).mT
    w2 = feed.w2.coefficients[1]
    read = feed.read(grids.with_depths(made.structure().depths[1])).weights.at(1.0)
    assert gap(read["w2"], w2[:, kept] + w2[:, left] @ part) < 1e-2  # eight bits of the moments
    wanted = feed.b2.coefficients[1] + w2[:, left] @ (mean[left] - part @ mean[kept])
    assert gap(read["b2"], wanted) < 1e-2


@pytest.mark.spec("B11")
def test_sizes_are_better_with_calibration_than_without() -> None:
    model = gpt(seed=1)
    data = [words(seed=seed) for seed in range(8)]
    held_out = words(seed=99)
    wanted = model(held_out)
    made = ct.elastic(model, calibrate=data)
    raw = ct.lift(model)

    def distance(view: Any) -> float:
        return float((view(held_out) - wanted).detach().norm())

    for size in ({"m": 12}, {"h": 2}, {"m": 6, "h": 2}):
        assert distance(made.at(**size)) < 0.8 * distance(raw.at(**size))


@pytest.mark.spec("B11")
def test_the_order_takes_what_the_others_do_not_say() -> None:
    """Of two inputs that are one, the second comes last; an input that feeds nothing too."""
    torch.manual_seed(0)
    inputs = torch.randn(400, 4, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0, 1.5])
    inputs[:, 1] = inputs[:, 0] + 1e-3 * inputs[:, 1]
    out = torch.eye(4, dtype=torch.float64)
    out[3, 3] = 0.5
    second = inputs.mT @ inputs / 400
    order = ordered(second, out).tolist()
    assert order[0] in (0, 1)
    assert order[1:3] == [2, 3]
    factor = leading(second, 3, torch.ones(4, dtype=torch.float64))
    assert gap(factor @ factor.mT, second) < 1e-5
    whole = torch.ones(4, 4, dtype=torch.float64) + 1e-18 * second  # one direction: all others are round-off
    assert sorted(ordered(whole, out).tolist()) == [0, 1, 2, 3]
    heads = ordered(torch.block_diag(second, 9 * second), torch.cat([out, out], 1), block=4)
    assert heads.tolist() == [1, 0]


@pytest.mark.spec("B11")
def test_groups_of_heads_keep_as_many_heads_each() -> None:
    torch.manual_seed(2)
    model = ct.zoo.llama(vocab=11, d=16, heads=8, depth=2, m=24, groups=2).double()
    made = ct.elastic(model, calibrate=[words(seed=seed) for seed in range(4)])
    ids = words(seed=9)
    assert gap(made(ids), model(ids)) <= EXACT
    for heads in (2, 4, 6):
        small = ct.discretise(made, h=heads)
        assert small.block.parts[0].inner.groups == 2
        assert gap(small(ids), made.at(h=heads)(ids)) <= EXACT


@pytest.mark.spec("B11")
def test_gradients_reach_the_nodes_that_are_left_out() -> None:
    made = ct.elastic(gpt(), calibrate=[words(seed=seed) for seed in range(3)])
    made.at(m=8)(words(seed=5)).square().sum().backward()
    feed = next(module for module in made.modules() if isinstance(module, Pointwise))
    assert bool((feed.w2.coefficients.grad.abs().sum((0, 1)) > 0).all())


@pytest.mark.spec("B11")
def test_moments_are_small_and_keep_their_bits(tmp_path) -> None:
    made = ct.elastic(gpt(), calibrate=[words(seed=seed) for seed in range(3)])
    ids = words(seed=5)
    wanted = made.at(m=8)(ids)
    kept = {name: value.clone() for name, value in made.named_buffers()}
    assert all(torch.equal(value, kept[name]) for name, value in made.float().named_buffers())
    assert gap(made.at(m=8)(ids).double(), wanted) < 1e-5
    moments = [module for module in made.modules() if isinstance(module, Refit)]
    assert sum(one.factor.numel() for one in moments) <= 0.1 * 4 * sum(p.numel() for p in made.parameters())


@pytest.mark.spec("B11")
def test_bad_calibration_data_are_refused() -> None:
    model = gpt()
    with refused(ConfigError, "none", "a few hundred texts"):
        ct.elastic(model, calibrate=[])
    with refused(ConfigError, "none", "tokens="):
        ct.elastic(model, calibrate=["some text"])
    with refused(ConfigError, "got 4", "more or longer texts"):
        ct.elastic(model, calibrate=[words(1)])
    with refused(ConfigError, "Interval", "counted axes"):
        ct.elastic(ct.lift(model), calibrate=[words()])
    tokens = ct.data.Characters.of("abcdefghijk")
    texts = ["abcdefghijkabcdefghijk"] * 8
    assert ct.elastic(model, calibrate=texts, tokens=tokens)(words()).shape == (4, 24, 11)


@pytest.mark.spec("B11")
def test_damaged_moments_are_refused() -> None:
    made = ct.elastic(gpt(), calibrate=[words(seed=seed) for seed in range(3)])
    refit = next(module.refit for module in made.modules() if isinstance(module, Attention))
    refit.rest[0, 0] = 0x7E00  # a NaN of half precision
    assert made(words()).isfinite().all()
    with refused(CheckpointError, "those of h", "Calibrate anew"):
        made.at(h=2).held()


@pytest.mark.slow(reason="it takes most of a minute to calibrate with 256 sentences")
@pytest.mark.spec("B11")
def test_minilm_at_smaller_sizes() -> None:
    """Cosine to the full model's embedding of held-out sentences, without a gradient step."""
    folder = folder_of(MINILM)
    model = ct.from_hf(folder).eval()
    data = encoded(folder, docstrings(512))
    made = ct.elastic(model, calibrate=data[:8])

    def embeddings(view: Any) -> torch.Tensor:
        rows = []
        for batch in data[8:]:
            there = batch.observed[..., None]
            rows.append((view(batch) * there).sum(1) / there.sum(1))
        return torch.cat(rows)

    with torch.no_grad():
        wanted = embeddings(model)
        assert float((embeddings(made) - wanted).abs().max()) < 1e-5
        for size, least in (({"m": 768}, 0.94), ({"m": 384}, 0.86), ({"h": 6}, 0.90), ({"m": 768, "h": 6}, 0.858)):
            got = cosine_similarity(embeddings(made.at(**size).held()), wanted).mean()
            assert got >= least, f"{size}: {got:.4f}"
        narrow = made.at(d=192, m=1536)
        places = torch.cdist(made.structure(ct.at(d=192)).grids.d.nodes, made.structure().grids.d.nodes).argmin(1)
        got = cosine_similarity(embeddings(narrow.held()), wanted[:, places]).mean()
        assert got >= 0.78, f"half of the state: {got:.4f}"
    moments = sum(value.numel() * value.element_size() for value in made.buffers())
    assert moments <= 0.1 * 4 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.spec("B11")
def test_the_former_name_warns() -> None:
    model = gpt()
    with pytest.warns(DeprecationWarning, match=r"continua\.elastic"):
        former = ct.models.elastic(model)
    assert gap(former(words()), ct.elastic(model)(words())) == 0
