"""Tiny random CLIPs of Hugging Face: both towers and each alone, all gradients, folders, sizes, graphs (B14)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.config import to_plain
from continua.convert.huggingface import Settings, unfilled
from continua.errors import ConfigError, ShapeError
from continua.models import TwoTowers
from tests.convert.test_hugging_face import on_disk
from tests.exact import EXACT, gap, gradients, numbers, stirred, worst
from tests.islands import lifted
from tests.lazy import Lazily

transformers = Lazily("transformers")
pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14", "M9")]

VOCAB, END, OUT = 23, 21, 12
TEXT = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
TEXT |= {"num_attention_heads": 4, "max_position_embeddings": 9, "projection_dim": OUT, "eos_token_id": END}
TEXT |= {"bos_token_id": 1, "pad_token_id": 0}
IMAGE = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGE |= {"image_size": 12, "patch_size": 4, "projection_dim": OUT}
# the end in the middle with the same token as padding, at the last place, and in the middle with other words behind
IDS = torch.tensor([[1, 4, 7, END, END, END], [1, 9, 2, 8, 5, END], [1, END, 3, 22, 6, 2]])
PIXELS = numbers(2, 3, 12, 12, seed=3)


@dataclass(frozen=True)
class Case:
    """A class of transformers, and what both sides are asked."""

    name: str
    batch: Any
    given: dict[str, Tensor]
    answer: str

    def theirs(self, dtype: torch.dtype = torch.float64, text: Any = None, image: Any = None) -> Any:
        """The model with noise on every weight."""
        text, image = TEXT | (text or {}), IMAGE | (image or {})
        if self.name == "CLIPModel":
            config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=OUT)
        else:
            is_text = "Text" in self.name
            config = transformers.CLIPTextConfig(**text) if is_text else transformers.CLIPVisionConfig(**image)
        return stirred(getattr(transformers, self.name)(config).eval(), dtype)

    def answered(self, theirs: Any) -> Tensor:
        """What the library of Hugging Face answers."""
        return getattr(theirs(**{k: _as(v, theirs) for k, v in self.given.items()}), self.answer)

    def asked(self, model: Any) -> Tensor:
        """What ours answers."""
        return model(self.batch)


def _as(values: Tensor, theirs: Any) -> Tensor:
    return values.to(next(theirs.parameters()).dtype) if values.is_floating_point() else values


WORDS, SEEN = {"input_ids": IDS}, {"pixel_values": PIXELS}
CASES = {
    case.name: case
    for case in (
        Case("CLIPModel", ct.Batch(IDS, source=ct.Batch(PIXELS)), WORDS | SEEN, "logits_per_text"),
        Case("CLIPTextModelWithProjection", ct.Batch(IDS), WORDS, "text_embeds"),
        Case("CLIPTextModel", ct.Batch(IDS), WORDS, "last_hidden_state"),
        Case("CLIPVisionModelWithProjection", ct.Batch(PIXELS), SEEN, "image_embeds"),
        Case("CLIPVisionModel", ct.Batch(PIXELS), SEEN, "pooler_output"),
    )
}
BOTH = CASES["CLIPModel"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TwoTowers:
    """Both towers in float64; no test changes them."""
    return ct.from_hf(on_disk(BOTH.theirs(), tmp_path_factory.mktemp("clip"))[0])


def unprefixed(names: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(names.prefix): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
def test_answers_gradients_and_folders(tmp_path: Path, case: Case) -> None:
    """Lifted to float64, then as it is; back into a folder, bit for bit, that Hugging Face reads."""
    theirs = case.theirs()
    folder, stored, names = on_disk(theirs, tmp_path / "theirs")
    made = ct.from_hf(folder)
    with torch.no_grad():
        assert gap(case.asked(made), case.answered(theirs)) <= 1e-6
    with lifted():
        wanted = case.answered(theirs)
        ours = case.asked(made)
        towards = numbers(*wanted.shape, seed=9)
        got = gradients((ours * towards).sum(), dict(made.named_parameters()))
        expected = gradients((wanted * towards).sum(), dict(theirs.named_parameters()))
    assert gap(ours, wanted) <= EXACT[torch.float64]
    found = unprefixed(names, names.store(got))
    assert worst(found, unprefixed(names, expected)) <= EXACT[torch.float64]
    back = unprefixed(names, names.store(made.state_dict()))
    assert set(back) == set(unprefixed(names, stored))
    assert all(torch.equal(back[name], tensor) for name, tensor in unprefixed(names, stored).items())
    again = type(theirs).from_pretrained(ct.to_hf(made, tmp_path / "ours"), dtype=torch.float64).eval()
    with lifted():
        assert gap(case.answered(again), ours) <= EXACT[torch.float64]
    assert to_plain(ct.from_hf(tmp_path / "ours")) == to_plain(made)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_float32(tmp_path: Path, attention: str) -> None:
    theirs = BOTH.theirs(torch.float32, {"hidden_act": "gelu"}, {"hidden_act": "gelu"})
    theirs.set_attn_implementation(attention)
    made = ct.from_hf(on_disk(theirs, tmp_path)[0])
    with torch.no_grad():
        batch = ct.Batch(IDS, source=ct.Batch(PIXELS.float()))
        assert gap(made(batch), BOTH.answered(theirs)) <= EXACT[torch.float32]


def test_padding_is_as_if_it_were_not_there(model: TwoTowers) -> None:
    case = CASES["CLIPTextModelWithProjection"]
    wanted = case.asked(model.texts)
    rows = torch.arange(6) < torch.tensor([[4], [6], [2]])
    assert gap(model.texts(ct.Batch(IDS, observed=rows)), wanted) <= EXACT[torch.float64]
    assert gap(model.texts(IDS[:1, :4]), wanted[:1]) <= EXACT[torch.float64]
    kept = model.texts.at(ct.at()).held()
    for ids in (IDS, IDS.flip(0)):  # bound once, asked with ends elsewhere
        assert gap(kept(ids), model.texts(ids)) <= EXACT[torch.float64]


def test_an_old_end_is_the_last_word_of_the_table() -> None:
    """Files that say 2 mean the highest token of a text."""
    config = Settings({**TEXT, "eos_token_id": 2})
    built, _ = unfilled("clip_text_model", config, {"text_projection.weight"})
    assert built.embed.end == VOCAB - 1


def test_what_older_files_leave_out_is_usual() -> None:
    config = Settings({"text_config": {"num_hidden_layers": 2}, "vision_config_dict": {"patch_size": 16}})
    built, _ = unfilled("clip", config, set())
    assert built.texts.axes.d.n == 512
    assert built.images.embed.pixels.patch == (16, 16)
    assert built.texts.native.z.steps == 2


def test_another_discretisation_runs(model: TwoTowers) -> None:
    native = BOTH.asked(model)
    for size in ({"d": 12}, {"h": 1}, {"e": 2}, {"m": 12}, {"z": 1}):
        other = model.at(**size)(BOTH.batch)
        assert other.shape == native.shape
        assert gap(other, native) > 1e-4
        assert gap(model.at(**size).held()(BOTH.batch), other) <= 1e-12
        assert gap(ct.discretise(model, **size)(BOTH.batch), other) <= 1e-12
    found = gradients(model.at(z=1)(BOTH.batch).square().sum(), dict(model.named_parameters()))
    assert all(g.isfinite().all() for g in found.values())
    assert gap(ct.lift(model)(BOTH.batch), native) <= 1e-12
    assert gap(ct.merged(ct.with_lora(model, 2))(BOTH.batch), native) <= 1e-12


@pytest.mark.slow(reason="two seconds of tracing")
def test_it_is_exported_for_other_numbers_of_texts_and_images(model: TwoTowers) -> None:
    shapes = torch.export.ShapesCollection()
    shapes[IDS] = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    shapes[PIXELS] = {0: torch.export.Dim.AUTO}
    program = torch.export.export(model, (BOTH.batch,), dynamic_shapes=shapes)
    other = ct.Batch(IDS[:, :4].repeat(2, 1), source=ct.Batch(PIXELS.repeat(2, 1, 1, 1)))
    assert gap(program.module()(other), model(other)) <= 1e-12


def test_it_is_saved_and_walked(model: TwoTowers, tmp_path: Path) -> None:
    again = ct.models.load(model.save(tmp_path))
    assert torch.equal(BOTH.asked(again), BOTH.asked(model))
    path = model.states(BOTH.batch)
    assert len(path.x) == 4
    assert model.velocity(BOTH.batch, 0.5, path.x[0]).shape == path.x[0].shape
    assert torch.equal(BOTH.asked(model.at(ct.at()).held()), BOTH.asked(model))


def test_what_is_missing_is_said(model: TwoTowers) -> None:
    with pytest.raises(ShapeError, match=r"texts with images, got one.*model\.texts"):
        model(IDS)
    with pytest.raises(ConfigError, match="one vector"):
        TwoTowers(model.images, ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=4))
