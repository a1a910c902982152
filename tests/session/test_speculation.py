"""A draft changes the time of a text and nothing else."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from continua.errors import ConfigError
from tests.refusals import refused

DRAFTS: list[dict[str, Any]] = [{"d": 8, "h": 2, "z": 2}, {"z": 1}, {}, {"d": 5, "h": 1, "z": 3}]


def ids(samples: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(12, (samples, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.spec("B12")
@pytest.mark.parametrize("draft", DRAFTS, ids=str)
@pytest.mark.parametrize("ahead", [1, 4])
def test_the_likeliest_tokens_are_the_same(draft, ahead: int, session) -> None:
    prompt = ids(3, 7, seed=4).numpy()
    there = np.array([[1] * 7, [0] * 3 + [1] * 4, [1] * 5 + [0] * 2])
    helper = session.at(**draft)
    for wish in (
        {"tokens": 12},
        {"tokens": 12, "observed": there},
        {"tokens": 15, "stop": (3, 7), "pad": 2},
        {"tokens": 12, "repetition_penalty": 1.4},
        {"tokens": 18},  # up to the last position
    ):
        wanted = session.generate(prompt, **wish)
        got = session.generate(prompt, draft=helper, ahead=ahead, **wish)
        assert got.shape == wanted.shape
        assert (got == wanted).all()
    assert session.generate("abc", tokens=9, draft=helper, ahead=ahead) == session.generate("abc", tokens=9)


@pytest.mark.spec("B12")
@pytest.mark.parametrize(
    "how", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.3}], ids=str
)
def test_drawn_texts_are_distributed_as_without_a_draft(how, elastic, session) -> None:
    """χ² of the second and third token of 6,000 texts against what the model says of them."""
    count = 6000
    prompt = np.tile(np.array([[1, 5, 2]]), (count, 1))
    drawn = session.generate(prompt, tokens=3, draft=session.at(d=8, h=2, z=1), ahead=2, seed=7, **how)[:, 3:]
    sampling = ct.Sample(how["temperature"], how.get("top_k"), 1.0, how.get("repetition_penalty", 1.0))
    expected: dict[tuple[int, int], float] = {}
    firsts = {}
    with torch.no_grad():
        firsts = _shares(elastic, sampling, [1, 5, 2])
        for a, p in firsts.items():
            for b, q in _shares(elastic, sampling, [1, 5, 2, a]).items():
                expected[a, b] = p * q
    seen = Counter((int(a), int(b)) for a, b in drawn[:, :2])
    cells = [(seen[pair], count * p) for pair, p in expected.items() if count * p >= 5]
    chi = sum((o - e) ** 2 / e for o, e in cells)
    degrees = len(cells)
    assert degrees > 10
    assert chi < degrees + 5 * (2 * degrees) ** 0.5  # five standard deviations
    assert all(expected.get(pair, 0.0) > 0 for pair in seen)


def _shares(model: Any, sampling: ct.Sample, tokens: list[int]) -> dict[int, float]:
    logits = model(torch.tensor([tokens]))[:, -1]
    marks = torch.zeros_like(logits, dtype=torch.bool)
    marks[0, tokens] = True
    share = sampling.warped(logits, marks).softmax(-1)[0]
    return {token: float(p) for token, p in enumerate(share) if p > 0}


@pytest.mark.spec("B12")
def test_what_is_no_draft_is_refused(session, tmp_path) -> None:
    with refused(ConfigError, "0", "ahead=4"):
        session.generate("ab", tokens=3, draft=session, ahead=0)
    torch.manual_seed(0)
    other = ct.zoo.gpt2(vocab=5, d=8, heads=2, depth=1, context=24).eval()
    draft = ct.Session(ct.export(other, tmp_path / "other.onnx").path)
    with refused(ConfigError, "5 tokens", "session.at"):
        session.generate("ab", tokens=3, draft=draft)
