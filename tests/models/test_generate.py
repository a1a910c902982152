"""Generation (A8): the cache is exact, the choice of tokens is Hugging Face's, and what cannot work is refused."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.axes import Times
from continua.errors import ConfigError, GridError, MaskError, ShapeError, SolveError
from continua.flow import RK4, Euler, Fixed, LieTrotter, Strang
from continua.models import Batch, EncoderDecoder, Readout
from continua.models.build import post_norm
from continua.operators import Causal, Strided, Window
from tests.cases import ENCODINGS, NORMS, POSITIONS, Case
from tests.cases_models import WORDS, discrete, encoder_decoder
from tests.exact import EXACT, gap
from tests.exact import stirred as with_noise
from tests.refusals import refused

os.environ.setdefault("HF_HUB_OFFLINE", "1")

B, N, NEW = 3, 5, 7
IDS = torch.randint(WORDS, (B, N + NEW), generator=torch.Generator().manual_seed(2))
LEFT = torch.arange(N) >= torch.tensor([[0], [2], [4]])
HOLES = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [1, 1, 0, 0, 0]]).bool()  # left, right and in between


@dataclass
class Dictated:
    """A sampling that writes what it is told and keeps the logits."""

    tokens: Tensor
    logits: list[Tensor] = field(default_factory=list)
    repetition_penalty: float = 1.0

    def choose(self, logits: Tensor, seen: Tensor | None, generator: torch.Generator | None) -> Tensor:
        self.logits.append(logits)
        return self.tokens[:, len(self.logits) - 1]


def cached(view: Any, prompt: Batch) -> Tensor:
    """The logits behind the prompt and behind each of ``NEW − 1`` tokens, one token at a time."""
    dictated = Dictated(IDS[:, N:])
    out = ct.generate(view, prompt, tokens=NEW, sampling=dictated)
    assert torch.equal(out, IDS)
    return torch.stack(dictated.logits, 1)


def whole(view: Any, observed: Tensor | None, source: Batch | None) -> Tensor:
    """The same logits by one forward pass over all tokens."""
    if observed is None:
        return view(Batch(IDS, source=source))[:, N - 1 : -1]
    every = torch.cat([observed, torch.ones(B, NEW, dtype=torch.bool)], 1)
    stamps = (every.long().cumsum(1) - 1).clamp_min(0)
    logits = view(Batch(IDS, times=stamps, observed=every, source=source))
    last = N - 1 - observed.flip(1).long().argmax(1)
    return torch.cat([logits[torch.arange(B), last][:, None], logits[:, N:-1]], 1)


CAUSAL = {"mask": Causal()}
CASES: dict[str, Callable[[], Any]] = {
    "continuous": lambda: ct.Transformer.continuous(vocab=WORDS, at=ct.at(d=8, h=2, e=4, m=12, z=2)),
    "gpt2": lambda: ct.zoo.gpt2(vocab=WORDS, d=8, heads=2, depth=2, context=16),
    "grouped": lambda: discrete(groups=1, **CAUSAL),
    "grouped, ALiBi": lambda: discrete(groups=1, position=POSITIONS["ALiBi"], **CAUSAL),
    "density": lambda: discrete(density=True, **CAUSAL),
    "encoder-decoder": encoder_decoder,
    **{f"mask {m}": lambda m=m: discrete(mask=m) for m in (Causal() & Window(3.0), Strided(2.0) & Causal())},
    **{f"position {p}": lambda p=p: discrete(position=POSITIONS[p], encoding=None, **CAUSAL) for p in POSITIONS},
    **{f"encoding {e}": lambda e=e: discrete(encoding=ENCODINGS[e], **CAUSAL) for e in ENCODINGS},
    **{f"norm {n}": lambda n=n: discrete(norm=NORMS[n], place=post_norm, **CAUSAL) for n in NORMS},
    **{
        f"stepped by {s}": lambda s=s: discrete(solver=s, position=POSITIONS["rotary"], **CAUSAL)
        for s in (Euler(), RK4(), LieTrotter(RK4()), Strang(), Strang(RK4()))
    },
}


def prompt_for(model: Any, observed: Tensor | None) -> Batch:
    """The first tokens, and a padded source where there is an encoder."""
    source = None
    if isinstance(model, EncoderDecoder):
        present = torch.arange(4) < torch.tensor([[4], [2], [3]])
        source = Batch(IDS[:, :4], observed=present)
    return Batch(IDS[:, :N], observed=observed, source=source)


@pytest.mark.spec("A8")
@pytest.mark.parametrize("observed", [None, LEFT, HOLES], ids=["full", "left padding", "holes"])
@pytest.mark.parametrize("name", CASES)
def test_a_cached_token_answers_as_in_the_whole_sequence(name: str, observed: Tensor | None) -> None:
    model = Case(CASES[name]).model()
    prompt = prompt_for(model, observed)
    assert gap(cached(model, prompt), whole(model, observed, prompt.source)) <= EXACT[torch.float64]


VIEWS = {
    "narrow": ct.at(d=6, h=1, z=3),
    "RK4": ct.at(z=Fixed(3, RK4())),
    "Strang": ct.at(d=12, z=Fixed(2, Strang())),
    "one step": ct.at(z=1),
}


@pytest.mark.spec("A8", "M7")
@pytest.mark.parametrize("observed", [None, LEFT], ids=["full", "left padding"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_cached_token_on_other_views(name: str, observed: Tensor | None) -> None:
    view = Case(CASES["continuous"]).model().at(VIEWS[name])
    assert gap(cached(view, prompt_for(view, observed)), whole(view, observed, None)) <= EXACT[torch.float64]
    assert torch.equal(view.generate(IDS[:, :N], tokens=3), ct.generate(view, IDS[:, :N], tokens=3))


@pytest.mark.spec("A8")
def test_a_long_text_outgrows_its_buffers() -> None:
    model = Case(lambda: discrete(encoding=None, position=POSITIONS["rotary"], **CAUSAL)).model()
    out = model.generate(IDS[:, :N], tokens=150)
    assert torch.equal(model(out)[:, N - 1 : -1].argmax(-1), out[:, N:])


@pytest.mark.spec("A8")
def test_generation_leaves_gradients_and_weights_as_they_were() -> None:
    model = Case(CASES["continuous"]).model()
    view = model.at(d=6)
    before = view.generate(IDS[:, :N], tokens=4)
    logits = view(IDS)
    assert logits.requires_grad
    logits.sum().backward()
    with torch.no_grad():
        model.embed.table.coefficients.neg_()
    assert not torch.equal(view.generate(IDS[:, :N], tokens=4), before)


# --- beside Hugging Face ----------------------------------------------------------------------------------------------


@pytest.fixture
def hf() -> Iterator[Any]:
    """The library, quiet."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield transformers
    logging.set_verbosity(before)
    logging.enable_progress_bar()


TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def hf_gpt2(hf: Any, dtype: torch.dtype = torch.float64) -> Any:
    sizes = {"vocab_size": 40, "n_embd": 16, "n_head": 4, "n_layer": 3, "n_positions": 40}
    return with_noise(hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **TOKENS)).eval(), dtype)


def hf_llama(hf: Any) -> Any:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = hf.LlamaConfig(**sizes, num_hidden_layers=3, intermediate_size=24, **TOKENS)
    return with_noise(hf.LlamaForCausalLM(config).eval())


def hf_t5(hf: Any) -> Any:
    sizes = {"vocab_size": 40, "d_model": 16, "num_heads": 4, "d_kv": 5, "num_layers": 2, "d_ff": 24}
    config = hf.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    return with_noise(hf.T5ForConditionalGeneration(config).eval())


def read(theirs: Any, folder: Path) -> Any:
    theirs.save_pretrained(folder)
    return ct.from_hf(folder)


WORDED = torch.randint(2, 40, (B, N), generator=torch.Generator().manual_seed(5))
PADDINGS = pytest.mark.parametrize("mask", [torch.ones_like(LEFT), LEFT], ids=["full", "left padding"])


@PADDINGS
@pytest.mark.spec("A8", "M9")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_greedy_is_hugging_faces(hf: Any, tmp_path: Path, family: str, mask: Tensor) -> None:
    theirs = {"gpt2": hf_gpt2, "llama": hf_llama}[family](hf)
    wanted = theirs.generate(WORDED, attention_mask=mask.long(), max_new_tokens=30, do_sample=False)
    got = ct.generate(read(theirs, tmp_path), WORDED, tokens=30, observed=mask)
    assert torch.equal(got, wanted)
    assert len(got.unique()) > 5, "a model that repeats itself tests little"


@PADDINGS
@pytest.mark.spec("A8", "M9")
def test_greedy_t5_is_hugging_faces(hf: Any, tmp_path: Path, mask: Tensor) -> None:
    theirs, start = hf_t5(hf), torch.zeros(B, 1, dtype=torch.long)
    choices = {"max_new_tokens": 30, "do_sample": False, "repetition_penalty": 9.0}
    wanted = theirs.generate(WORDED, attention_mask=mask.long(), **choices)
    prompt = Batch(start, source=Batch(WORDED, observed=mask))
    got = read(theirs, tmp_path).generate(prompt, tokens=30, sampling=ct.Greedy(repetition_penalty=9.0))
    assert torch.equal(got, wanted)
    assert len(got.unique()) > 5, "a model that repeats itself tests little"


@pytest.mark.spec("A8", "M9")
def test_stop_tokens_and_the_penalty_are_hugging_faces(hf: Any, tmp_path: Path) -> None:
    theirs = hf_gpt2(hf)
    model = read(theirs, tmp_path)
    free = ct.generate(model, WORDED, tokens=12, sampling=ct.Greedy(repetition_penalty=1.3))
    stop = (int(free[0, N + 3]), int(free[1, N + 6]))
    wanted = theirs.generate(
        WORDED, max_new_tokens=30, do_sample=False, eos_token_id=list(stop), pad_token_id=0, repetition_penalty=1.3
    )
    got = ct.generate(model, WORDED, tokens=30, stop=stop, pad=0, sampling=ct.Greedy(repetition_penalty=1.3))
    assert torch.equal(got, wanted)
    assert not torch.equal(ct.generate(model, WORDED, tokens=12), free), "the penalty changed nothing"


@pytest.mark.spec("A8", "M9")
def test_draws_are_hugging_faces(hf: Any, tmp_path: Path) -> None:
    """From the same state of torch's own generator, in float32, where both draw from the same numbers."""
    theirs = hf_gpt2(hf, torch.float32)
    model = read(theirs, tmp_path)
    torch.manual_seed(11)
    wanted = theirs.generate(WORDED, max_new_tokens=20, do_sample=True, temperature=0.8, top_k=12, top_p=0.9)
    torch.manual_seed(11)
    got = ct.generate(model, WORDED, tokens=20, sampling=ct.Sample(0.8, 12, 0.9))
    assert torch.equal(got, wanted)


SAMPLES = [
    ct.Sample(),
    ct.Sample(temperature=0.3),
    ct.Sample(top_k=4),
    ct.Sample(top_k=99),
    ct.Sample(top_p=0.7),
    ct.Sample(top_p=1e-6),
    ct.Sample(repetition_penalty=1.7),
    ct.Sample(1.4, 6, 0.8, 0.6),
]


@pytest.mark.spec("A8")
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_distributions_are_hugging_faces(hf: Any, sample: ct.Sample) -> None:
    generation = hf.generation.logits_process
    logits = 2 * torch.randn(B, WORDS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits[0, 3:6] = logits[0, 2]  # ties
    steps = [generation.RepetitionPenaltyLogitsProcessor(sample.repetition_penalty)]
    steps += [generation.TemperatureLogitsWarper(sample.temperature)]
    steps += [] if sample.top_k is None else [generation.TopKLogitsWarper(sample.top_k)]
    steps += [generation.TopPLogitsWarper(sample.top_p)]
    wanted = hf.LogitsProcessorList(steps)(IDS, logits.clone())
    seen = torch.zeros(B, WORDS, dtype=torch.bool).scatter(1, IDS, True)
    assert gap(sample.warped(logits, seen).softmax(-1), wanted.softmax(-1)) <= EXACT[torch.float64]


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Any:
    return Case(CASES["gpt2"]).model()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.spec("A8")
def test_a_seed_decides_every_draw(model: Any) -> None:
    def draw(seed: int) -> Tensor:
        state = torch.get_rng_state()
        out = model.generate(IDS[:, :N], tokens=9, sampling=ct.Sample(1.5), generator=seeded(seed))
        assert torch.equal(state, torch.get_rng_state()), "a given generator leaves torch's own alone"
        return out

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.spec("A8")
def test_a_stream_is_the_text(model: Any) -> None:
    whole = model.generate(IDS[:, :N], tokens=6)
    flow = ct.stream(model, IDS[:, :N], tokens=6)
    first = next(flow)
    assert torch.is_grad_enabled(), "between tokens the caller's mode holds"
    assert first.shape == (B,)
    assert torch.equal(torch.stack([first, *flow], 1), whole[:, N:])


@pytest.mark.spec("A8")
def test_finished_samples_are_filled_and_the_last_one_ends_all(model: Any) -> None:
    free = model.generate(IDS[:, :N], tokens=10)
    stop = tuple({int(row[N + i]) for i, row in zip((1, 3, 4), free, strict=True)})
    out = model.generate(IDS[:, :N], tokens=10, stop=stop)
    ends = []
    for row, plain in zip(out[:, N:], free[:, N:], strict=True):
        end = int(torch.isin(row, torch.tensor(stop)).long().argmax())
        assert torch.equal(row[: end + 1], plain[: end + 1])
        assert (row[end + 1 :] == stop[0]).all()
        ends.append(end)
    assert out.shape[1] == N + max(ends) + 1


@pytest.mark.spec("A8")
def test_padding_is_not_penalised(model: Any) -> None:
    """What stands in absent places is no token of the text."""
    greedy = ct.Greedy(repetition_penalty=5.0)
    alone = model.generate(IDS[1:2, 2:N], tokens=5, sampling=greedy)
    filled = IDS[1:2, :N].clone()
    filled[:, :2] = int(alone[0, -5])
    padded = model.generate(filled, tokens=5, sampling=greedy, observed=LEFT[1:2])
    assert torch.equal(padded[:, N:], alone[:, N - 2 :])


# --- what is refused --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adaptive:
    """A control that is not ``Fixed``."""

    solver: Any = RK4()  # noqa: RUF009
    steps: int = 3


PROMPT = IDS[:, :N]
REFUSALS: dict[str, tuple[Callable[[Any], Any], type, str, str]] = {
    "adaptive": (lambda m: m.at(z=Adaptive()).generate(PROMPT), SolveError, "Adaptive", "fixed steps"),
    "long prompt": (lambda m: m.generate(IDS[:, :1].expand(-1, 17), tokens=1), ShapeError, "17", "Shorten the prompt"),
    "long text": (lambda m: m.generate(PROMPT, tokens=13), ShapeError, "13 more", "at most 12"),
    "empty": (lambda m: m.generate(IDS[:, :0]), ShapeError, "[3, 0]", "Drop empty"),
    "nothing observed": (
        lambda m: m.generate(PROMPT, tokens=2, observed=torch.zeros_like(LEFT)), GridError, "one with none", "observed",
    ),
    "strange token": (lambda m: m.generate(PROMPT + 5, tokens=2), ShapeError, "to 1", "tokeniser"),
    "negative token": (lambda m: m.generate(PROMPT - 5, tokens=2), ShapeError, "-", "tokeniser"),
    "strange stop": (lambda m: m.generate(PROMPT, tokens=2, stop=(99,)), ShapeError, "99", "tokeniser"),
    "real numbers": (lambda m: m.generate(PROMPT.double(), tokens=2), ShapeError, "float64", "Tokenise"),
    "no tokens": (lambda m: m.generate(PROMPT, tokens=0), ConfigError, "0", "tokens=n"),
    "times": (lambda m: m.generate(Batch(PROMPT, times=torch.arange(N))), GridError, "stamps", "observed"),
    "pairs": (lambda m: m.generate(Batch(PROMPT, pairs=torch.ones(N, N).bool())), MaskError, "pairs", "mask"),
    "observed twice": (
        lambda m: m.generate(Batch(PROMPT, observed=LEFT), observed=LEFT), ConfigError, "twice", "Leave it out",
    ),
    "two-sided": (
        lambda m: ct.zoo.bert(WORDS, d=8, heads=2, depth=2, context=16, masked_lm=True).generate(PROMPT),
        MaskError, "None", "Causal()",
    ),
    "no words": (
        lambda m: ct.Transformer.continuous(channels=2, t=ct.Points(), mask=Causal(), at=ct.at(d=8, h=2, z=2)).generate(
            PROMPT
        ), ConfigError, "Observations", "Tokens",
    ),
    "no source": (lambda m: encoder_decoder().generate(PROMPT, tokens=2), ShapeError, "none", "source="),
    "real time": (
        lambda m: ct.Transformer.continuous(vocab=WORDS, t=Times(), at=ct.at(d=8, h=2, z=2)).generate(PROMPT),
        GridError, "Times", "Points()",
    ),
    "temperature": (lambda m: ct.Sample(temperature=0.0), ConfigError, "0.0", "Greedy()"),
    "top_k": (lambda m: ct.Sample(top_k=0), ConfigError, "0", "Leave it out"),
    "top_p zero": (lambda m: ct.Sample(top_p=0.0), ConfigError, "0.0", "leave it out"),
    "top_p": (lambda m: ct.Sample(top_p=1.1), ConfigError, "1.1", "leave it out"),
    "penalty": (lambda m: ct.Greedy(repetition_penalty=-1.0), ConfigError, "-1.0", "1.0 for none"),
}  # fmt: skip


@pytest.mark.spec("A8")
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(model: Any, name: str) -> None:
    call, kind, got, remedy = REFUSALS[name]
    with refused(kind, got, remedy):
        call(model)


@pytest.mark.spec("A8")
def test_a_stream_refuses_before_its_first_token(model: Any) -> None:
    with pytest.raises(ShapeError, match="position table"):
        ct.stream(model, PROMPT, tokens=99)


@pytest.mark.spec("A8")
@pytest.mark.parametrize("one", ["pool", "first"])
def test_one_answer_for_all_tokens_is_refused(model: Any, one: str) -> None:
    model.readout = Readout(discrete().readout._arguments["weights"], WORDS, **{one: True})
    with refused(ConfigError, "Readout", "Readout(out=vocab)"):
        model.generate(PROMPT)


@pytest.mark.spec("A8")
def test_a_head_beyond_the_table_is_refused(model: Any) -> None:
    model.readout = Readout(discrete().readout._arguments["weights"], WORDS + 1)
    with refused(ConfigError, f"a head of {WORDS + 1}", "one vocabulary"):
        model.generate(PROMPT)
