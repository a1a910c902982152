"""Drawing tokens at the ends of what may be set: a share is a share, in every precision."""

import pytest
import torch

import continua as ct
from continua.errors import ConfigError, ShapeError
from continua.models.sampling import penalised
from tests.refusals import refused

LOGITS = torch.tensor([[30.0, -20.0, 31.0, 0.0], [-5.0, -5.0, -90.0, -7.0]], dtype=torch.float64)
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])

pytestmark = pytest.mark.spec("A8", "B17")


@PRECISIONS
@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-40, 1e-6])
def test_the_coldest_draw_is_the_likeliest_token(dtype: torch.dtype, temperature: float) -> None:
    share = ct.Sample(temperature).warped(LOGITS.to(dtype)).softmax(-1)
    wanted = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]], dtype=dtype)
    assert torch.equal(share, wanted)
    token = ct.Sample(temperature).choose(LOGITS.to(dtype), None, torch.Generator().manual_seed(0))
    assert token.tolist()[0] == 2


@PRECISIONS
def test_the_hottest_draw_takes_all_tokens_alike_that_are_not_cut(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype).index_fill(1, torch.tensor([3]), -torch.inf)
    share = ct.Sample(1e308).warped(logits).softmax(-1)
    assert (share[:, 3] == 0).all()
    assert (share[:, :3] - 1 / 3).abs().max() <= torch.finfo(dtype).eps


@PRECISIONS
@pytest.mark.parametrize("penalty", [1e-320, 1e-300, 1e300])
def test_a_penalty_without_measure_leaves_shares(dtype: torch.dtype, penalty: float) -> None:
    seen = torch.ones(LOGITS.shape, dtype=torch.bool)
    found = penalised(LOGITS.to(dtype), seen, penalty)
    assert torch.isfinite(found).all()
    share = ct.Sample(0.5, repetition_penalty=penalty).warped(LOGITS.to(dtype), seen).softmax(-1)
    assert (share.double().sum(-1) - 1).abs().max() < 0.01


def test_usual_temperatures_are_a_plain_division() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = LOGITS.to(dtype)
        assert torch.equal(ct.Sample(0.8).warped(logits), logits / 0.8)


@pytest.mark.parametrize("number", [2**63, 10**40, -(10**40)])
def test_ends_that_no_vocabulary_has_are_refused(number: int) -> None:
    model = ct.zoo.gpt2(vocab=9, d=8, heads=2, depth=1, context=8)
    ids = torch.zeros(1, 2, dtype=torch.long)
    with refused(ShapeError, f"got {number} to {number}", "tokeniser of this model"):
        model.generate(ids, tokens=2, stop=[number])
    with refused(ShapeError, f"got {number} to {number}", "tokeniser of this model"):
        model.generate(ids, tokens=2, pad=number)


def test_padding_is_a_token_of_the_table() -> None:
    def llama(pad: int) -> ct.Transformer:
        return ct.zoo.llama(vocab=9, d=8, heads=2, depth=1, m=8, style=ct.zoo.LlamaStyle(pad=pad))

    with refused(ConfigError, "got 9", "Leave it out"):
        llama(9)
    assert torch.isfinite(llama(-1)(torch.zeros(1, 2, dtype=torch.long))).all()
