"""What is exported is what the model says, or it is not written."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from continua.axes import taken_first
from continua.convert import with_corrections
from continua.convert.onnx import decoders
from continua.errors import ConfigError, ShapeError
from continua.fields import Corrections
from continua.models import Pass
from continua.models.patches import Pixels
from continua.operators import Context
from continua.operators.correction import corrections_of
from continua.tasks import BytePairs, Characters
from tests.commands import typed
from tests.refusals import refused
from tests.runs import calibrated

pytest.importorskip("onnxruntime")
CLOSE = 1e-5


@pytest.fixture(scope="module")
def elastic() -> Any:
    torch.manual_seed(0)
    return calibrated(ct.elastic(ct.zoo.gpt2(vocab=12, d=16, heads=2, depth=3, context=16))).eval()


def words(samples: int, tokens: int) -> torch.Tensor:
    return torch.randint(12, (samples, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.spec("B2")
def test_one_file_has_all_sizes_and_says_how_far_it_is(elastic, tmp_path: Path) -> None:
    made = ct.export(elastic, tmp_path / "all.onnx")
    assert len(made.compared) >= 4
    assert made.difference < CLOSE
    assert [path.name for path in tmp_path.iterdir()] == ["all.onnx"]
    assert ct.Session(made.path).about.elastic


@pytest.mark.spec("B2")
def test_a_view_is_one_size_with_everything_folded(elastic, tmp_path: Path) -> None:
    view = elastic.at(d=8, h=1, z=2)
    made = ct.export(view, tmp_path / "one.onnx")
    session = ct.Session(made.path)
    ids = words(2, 6)
    assert np.abs(session(ids.numpy()) - view(ids).detach().numpy()).max() < CLOSE
    assert session.about.native["d"] == 8
    with refused(ConfigError, "d=4", "Export the elastic model"):
        session.at(d=4)


@pytest.mark.spec("B2")
def test_weights_refitted_by_data_are_written_at_one_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = ct.zoo.gpt2(vocab=12, d=16, heads=2, depth=2, context=16).eval()
    model = ct.elastic(plain, calibrate=[words(8, 12)])
    made = ct.export(model, tmp_path / "native.onnx")
    assert "One size is written" in made.notes[0]
    view = model.at(m=32, h=1)
    session = ct.Session(ct.export(view, tmp_path / "half.onnx").path)
    ids = words(2, 6)
    assert np.abs(session(ids.numpy()) - view(ids).detach().numpy()).max() < CLOSE


@pytest.mark.spec("B2")
def test_one_file_goes_down_to_sizes_that_are_corrected(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.elastic(ct.zoo.gpt2(vocab=12, d=16, heads=4, depth=4, context=16))
    model = calibrated(with_corrections(model, Corrections(2, "dhzaf", beyond=1.0))).eval()
    with torch.no_grad():
        for own in corrections_of(model):
            for parameter in own.parameters():
                parameter.add_(0.1)
    made = ct.export(model, tmp_path / "all.onnx")
    assert made.difference < CLOSE
    session = ct.Session(made.path)
    ids = words(2, 6)
    for size in ({"d": 8, "h": 2, "z": 2}, {"d": 9, "z": 3}):
        wanted = model.at(**size)(ids).detach().numpy()
        assert np.abs(session.at(**size)(ids.numpy()) - wanted).max() < CLOSE
    for size, remedy in (({"d": 4}, "from 8 to 16"), ({"h": 1}, "from 2 to 4"), ({"z": 1}, "from 2 to 4")):
        with refused(ConfigError, "=".join(map(str, *size.items())), f"{remedy}, or export that size"):
            session.at(**size)
    with refused(ConfigError, "no fewer steps, got 4", "Take 2 steps or more"):
        session.at(z=(4,))
    view = model.at(d=4, h=1, z=1)
    alone = ct.Session(ct.export(view, tmp_path / "one.onnx").path)
    assert np.abs(alone(ids.numpy()) - view(ids).detach().numpy()).max() < CLOSE


@pytest.mark.spec("B2")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own head"])
def test_llama_keeps_shared_keys(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    style = ct.zoo.LlamaStyle(tied=tied, bias=tied)
    model = ct.zoo.llama(vocab=12, d=16, heads=4, depth=2, m=24, groups=2, style=style).eval()
    session = ct.Session(ct.export(model, tmp_path / "llama.onnx").path)
    ids = words(2, 5)
    assert (session.generate(ids.numpy(), tokens=8) == ct.generate(model, ids, tokens=8).numpy()).all()


@pytest.mark.spec("B2")
def test_probes_are_attention_and_states_along_depth(elastic, tmp_path: Path) -> None:
    session = ct.Session(ct.export(elastic, tmp_path / "probe.onnx", probe=True).path)
    ids = words(2, 7)
    found = session.at(d=9, h=1, z=2).probe(ids.numpy())
    view = elastic.at(d=9, h=1, z=2)
    record: list[Any] = []
    elastic(ids, view.discretisation, Pass(Context(record=record)))
    assert np.abs(found["attention"] - torch.stack([one.weights for one in record]).detach().numpy()).max() < CLOSE
    order = taken_first(elastic.axes.d, elastic.native.d)[:9]
    states = torch.stack(list(view.states(ids).x)).detach().numpy()[..., np.argsort(np.argsort(order))]
    assert np.abs(found["states"] - states).max() < CLOSE


@pytest.mark.spec("B2")
def test_eight_bits_lose_little_and_say_what(elastic, tmp_path: Path) -> None:
    whole = ct.export(elastic, tmp_path / "whole.onnx")
    made = ct.export(elastic, tmp_path / "small.onnx", int8=True, data=words(4, 16))
    assert 0 < made.difference < 0.5
    assert abs(made.loss) < 0.05
    assert made.path.stat().st_size < whole.path.stat().st_size
    assert ct.Session(made.path).about.int8


@pytest.mark.spec("B2")
@pytest.mark.parametrize(
    "tokens", [Characters("abcdefghijkl"), BytePairs.of("abcabd" * 9, 262)], ids=["letters", "pairs"]
)
def test_the_tokeniser_rides_in_the_file(tokens, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.zoo.gpt2(vocab=tokens.size, d=8, heads=2, depth=1, context=16).eval()
    session = ct.Session(ct.export(model, tmp_path / "text.onnx", tokens=tokens).path)
    ids = tokens.encode("abca")
    assert session.tokens.encode("abca").tolist() == ids.tolist()
    assert session.generate("abca", tokens=4) == tokens.decode(ct.generate(model, ids[None], tokens=4)[0])


@pytest.mark.spec("B2")
def test_what_differs_is_not_written(elastic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "kept.onnx"
    target.write_text("what was there before")
    stored = decoders.stored

    def damaged(model: Any, is_elastic: bool) -> Any:
        own = stored(model, is_elastic)
        own.feed.w1[0, 0, 0] += 1.0
        return own

    monkeypatch.setattr(decoders, "stored", damaged)
    with refused(ConfigError, "", "nothing was written"):
        ct.export(elastic, target)
    assert target.read_text() == "what was there before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.onnx"]


@pytest.mark.spec("B2")
def test_targets_that_cannot_be_are_refused(elastic, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("")
    with refused(ConfigError, "'.tflite'", "FILE.onnx"):
        ct.export(elastic, tmp_path / "model.tflite")
    with refused(ConfigError, "a folder is there", "Choose a place"):
        ct.export(elastic, tmp_path / "folder.onnx")
    with refused(ConfigError, "", "Choose a place"):
        ct.export(elastic, tmp_path / "file" / "m.onnx")
    with refused(ConfigError, "Linear", "Give a model"):
        ct.export(torch.nn.Linear(2, 2), tmp_path / "m.onnx")


TRACED = "tracing and converting take several seconds"


def sentences(samples: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = words(samples, tokens)
    there = torch.arange(tokens) < tokens - torch.arange(samples)[:, None]
    return ids, there


@pytest.mark.spec("B2")
@pytest.mark.unshaped
def test_an_encoder_embeds_padded_texts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.zoo.bert(vocab=12, d=8, heads=2, depth=1, context=16).eval()
    made = ct.export(model, tmp_path / "bert.onnx", tokens=Characters("abcdefghijkl"))
    assert len(made.compared) >= 4
    session = ct.Session(made.path)
    ids, there = sentences(3, 6)
    states = model(ct.Batch(ids, observed=there)).detach()
    wanted = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True)
    assert np.abs(session.embed(ids.numpy(), there.numpy()) - wanted.numpy()).max() < CLOSE
    texts = ["".join("abcdefghijkl"[i] for i in row[flags]) for row, flags in zip(ids, there, strict=True)]
    assert np.abs(session.embed(texts) - wanted.numpy()).max() < CLOSE
    with refused(ConfigError, "kind encoder", "session.embed"):
        session.generate("ab")
    with refused(ShapeError, "one text", "session.embed"):
        session.embed("ab")
    with refused(ShapeError, "17 tokens", "Shorten"):
        session.embed(["a" * 17])


@pytest.mark.spec("B2")
@pytest.mark.unshaped
@pytest.mark.slow(reason=TRACED)
@pytest.mark.parametrize("int8", [False, True], ids=["whole", "eight bits"])
def test_images_are_predicted(int8: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.zoo.vit(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, labels=3).eval()
    session = ct.Session(ct.export(model, tmp_path / "vit.onnx", int8=int8).path)
    images = torch.randn(5, 3, 8, 8)
    found = session.predict(images.numpy())
    assert np.abs(found - model(images).detach().numpy()).max() < (0.1 if int8 else CLOSE)
    with refused(ShapeError, "pixels", "each of them once"):
        session.predict(pixels=images.numpy())
    with refused(ShapeError, "[5, 3, 8, 7]", "Its inputs: images"):
        session.predict(images.numpy()[..., :7])


@pytest.mark.spec("B2")
@pytest.mark.unshaped
@pytest.mark.slow(reason=TRACED)
def test_functions_take_nodes_and_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.Transformer.continuous(channels=2, at=ct.at(d=8, h=2, z=2), t=ct.Interval()).eval()
    session = ct.Session(ct.export(model, tmp_path / "field.onnx").path)
    nodes = torch.rand(9, 1).sort(0).values
    weights = torch.full((9,), 1 / 9)
    values = torch.randn(3, 9, 2)
    wanted = model(ct.Batch(values, grid=ct.Grid(nodes, weights))).detach().numpy()
    found = session.predict(values.numpy(), nodes=nodes.numpy(), weights=weights.numpy())
    assert np.abs(found - wanted).max() < CLOSE


@pytest.mark.spec("B2")
@pytest.mark.unshaped
@pytest.mark.slow(reason=TRACED)
@pytest.mark.parametrize("axis", [ct.Circle(), ct.Product((ct.Interval(), ct.Interval()))], ids=["circle", "square"])
def test_maps_of_functions_answer_on_their_own_grid(axis: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ct.zoo.function_map(axis, 8, at=ct.at(d=8, h=2, m=8, z=2), modes=3).eval()
    session = ct.Session(ct.export(model, tmp_path / "map.onnx").path)
    values = torch.randn(5, model.embed.rule.n, 1)
    assert np.abs(session.predict(values.numpy()) - model(values).detach().numpy()).max() < CLOSE


@pytest.mark.spec("B2")
@pytest.mark.unshaped
def test_a_program_of_torch_answers_other_shapes(elastic, tmp_path: Path) -> None:
    view = elastic.at(d=8, h=1, z=2)
    made = ct.export(view, tmp_path / "small.pt2")
    assert made.kind == "program"
    again = torch.export.load(made.path).module()
    for samples, tokens in ((1, 3), (5, 9)):
        ids = words(samples, tokens)
        assert (again(ids) - view(ids)).abs().max() < CLOSE
    with refused(ConfigError, "'.pt2'", "FILE.onnx"):
        ct.export(view, tmp_path / "small.pt2", int8=True)


@pytest.mark.spec("B2")
def test_a_folder_is_for_hugging_face(elastic, tmp_path: Path) -> None:
    view = elastic.at(d=8, h=1, z=2)
    made = ct.export(view, tmp_path / "folder", tokens=Characters("abcdefghijkl"))
    assert made.kind == "folder"
    ids = words(2, 6)
    assert (ct.from_hf(made.path)(ids) - view(ids)).abs().max() < CLOSE
    assert (made.path / "tokenizer.json").is_file()
    with refused(ConfigError, "which is there", "Choose another name"):
        ct.export(view, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


@pytest.mark.spec("B2")
def test_what_has_no_file_says_so(tmp_path: Path) -> None:
    t5 = ct.zoo.t5(vocab=12, d=8, heads=2, depth=1).eval()
    for name in ("t5.onnx", "t5.pt2"):
        with refused(ConfigError, "EncoderDecoder", "model.save"):
            ct.export(t5, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.spec("B2")
def test_double_precision_and_training_mode_are_exported_as_used(elastic, tmp_path: Path) -> None:
    import copy

    double = copy.deepcopy(elastic).double().train()
    made = ct.export(double, tmp_path / "double.onnx")
    assert made.difference < CLOSE
    assert double.training


@pytest.mark.spec("B2")
def test_the_command_writes_from_a_folder(elastic, tmp_path: Path) -> None:
    elastic.save(tmp_path / "model")
    done = typed("export", str(tmp_path / "model"), str(tmp_path / "m.onnx"))
    assert done.returncode == 0, done.stderr
    assert "d=8, h=1, z=1" in done.stdout
    done = typed("export", str(tmp_path / "model"), str(tmp_path / "one.onnx"), "--at", "d=8,z=2", "--int8")
    assert done.returncode == 0, done.stderr
    assert "nats a token" in done.stdout.replace("\n", " ") or "more loss" in done.stdout
    ct.to_hf(
        ct.zoo.gpt2(vocab=12, d=8, heads=2, depth=1, context=8), tmp_path / "hf", tokens=Characters("abcdefghijkl")
    )
    done = typed("export", str(tmp_path / "hf"), str(tmp_path / "hf.onnx"))
    assert done.returncode == 0, done.stderr
    described = ct.Session(tmp_path / "hf.onnx").about.tokens
    assert described is not None
    assert json.loads(described["json"])["model"]["vocab"]["a"] == 0
    assert typed("export", str(tmp_path / "model"), str(tmp_path / "m.xyz")).returncode != 0


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_files_do_not_name_folders_of_the_machine_that_wrote_them(tmp_path: Path, name: str) -> None:
    model = ct.zoo.bert(vocab=12, d=16, heads=2, depth=1, context=16).eval()
    ct.export(model, tmp_path / name)
    written = (tmp_path / name).read_bytes()
    if name.endswith(".pt2"):
        with zipfile.ZipFile(tmp_path / name) as parts:
            written = b"".join(parts.read(part) for part in parts.namelist())
    assert str(Path(ct.__file__).parent).encode() not in written
    assert b"transformer.py" not in written
