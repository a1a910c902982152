"""One checkpoint for many sizes: nested nodes, calibration, the law of sizes, and the lessons they get."""

import json
import math

import pytest
import torch

from continua.axes import Depths, at
from continua.config import from_plain, to_plain
from continua.convert import elastic
from continua.errors import ConfigError
from continua.flow import Adaptive, Checkpoint, Direct, Fixed, Lean, Recompute
from continua.models import Batch, Transformer, load, zoo
from continua.models.patches import Pixels
from continua.operators import Context
from continua.operators.calibration import FINEST, HALF, Calibration
from continua.tasks import digits
from continua.tasks.task import divergence, generator_for
from continua.training import Elastic, Objective, Run, Training, Whole, fit
from continua.training.elastic import Lesson, block
from tests.refusals import refused
from tests.runs import calibrated, tiny_task

OTHERS = [{"d": 8}, {"d": 10}, {"h": 2}, {"h": 3}, {"z": 2}, {"z": 3}, {"z": 8}, {"d": 8, "h": 2, "z": 2}]


def gpt(depth: int = 4) -> Transformer:
    torch.manual_seed(0)
    return zoo.gpt2(vocab=20, d=16, heads=4, depth=depth, context=16).double()


def ids() -> torch.Tensor:
    return torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(2))


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B1")
@pytest.mark.parametrize(
    ("make", "data"),
    [
        (gpt, ids),
        (lambda: zoo.bert(vocab=20, d=16, heads=4, depth=3, context=16).double(), ids),
        (
            lambda: zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=16, heads=4, depth=2, labels=3).double(),
            lambda: torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
        ),
        (lambda: zoo.t5(vocab=20, d=16, heads=4, depth=2).double(), lambda: Batch(ids(), source=Batch(ids()))),
    ],
)
def test_an_elastic_model_is_the_discrete_one_on_its_own_grid(make, data) -> None:
    model, x = make(), data()
    made = elastic(model)
    assert torch.equal(made(x), model(x))
    with torch.no_grad():
        next(made.parameters()).add_(1.0)
    assert not torch.equal(made(x), model(x)), "weights are copied, not shared"


@pytest.mark.spec("B1")
@pytest.mark.parametrize("finer", [{"d": 32}, {"h": 8}, {"m": 128}, {"d": 32, "h": 8}])
def test_twice_the_nodes_of_a_width_are_the_same_function(finer) -> None:
    model = calibrated(elastic(gpt()))
    assert (model.at(**finer)(ids()) - model(ids())).abs().max() < 1e-12


@pytest.mark.spec("B1")
def test_fewer_nodes_are_some_of_its_own_and_steps_are_joined() -> None:
    model = elastic(gpt())
    view = model.at(d=8, h=2, z=3).discretisation
    assert (view.d.n, view.m.n, view.h.n, view.e.n) == (8, 32, 2, 4)
    assert [z for z, _ in view.z.walk((0.0, 4.0))] == [0.0, 1.0, 2.0]
    fine, coarse = (model.at(d=n).discretisation.grids(model.axes).d.nodes[:, 0].tolist() for n in (16, 10))
    assert set(coarse) < set(fine)


@pytest.mark.spec("B1")
def test_what_is_no_discrete_transformer_is_refused() -> None:
    with refused(ConfigError, "d is continuous already", "zoo.gpt2"):
        elastic(Transformer.continuous(vocab=8, at=at(d=8, h=2, z=2)))
    with refused(ConfigError, "got Linear", "models.zoo"):
        elastic(torch.nn.Linear(2, 2))


@pytest.mark.spec("B1")
def test_an_elastic_model_is_saved_and_loaded(tmp_path) -> None:
    model = calibrated(elastic(gpt()))
    again = load(model.save(tmp_path))
    for wish in OTHERS:
        assert torch.equal(again.at(**wish)(ids()), model.at(**wish)(ids()))


# --- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T11")
def test_calibration_says_nothing_at_home_and_reaches_every_gain_elsewhere() -> None:
    model = calibrated(elastic(gpt()))
    gains = {name: p for name, p in model.named_parameters() if ".calibration." in name}
    model(ids()).square().sum().backward()
    assert all(p.grad is None for p in gains.values())
    model.at(d=8, h=2, z=2)(ids()).square().sum().backward()
    missing = {name[-len("m.coefficients")] for name, p in gains.items() if p.grad is None}
    assert missing == {"m", "e", "p"}
    model.at(m=32, e=2, z=8)(ids()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gains.values())


@pytest.mark.spec("T11")
def test_calibration_is_the_exponential_of_sizes_times_gains() -> None:
    model = calibrated(elastic(gpt()))
    norm = model.block.parts[0].norm
    structure = model.structure(at(d=8, h=2, z=2))
    assert structure.steps == tuple(Fixed(2, nested=4).walk(structure.span))
    assert structure.depths[0] == Depths((0.0, 2.0), (2.0, 2.0), (0.0, 0.0))
    _, args = norm.bind(structure.grids.with_depths(structure.depths[0]))
    own: Calibration = norm.calibration
    rows, nodes = slice(None, None, 2), slice(None, None, 2)  # half of 16 nodes, layers 0 and 2
    log = sum(own.fields[f"scale over d by {k}"].coefficients[rows, nodes] for k in "dhz")  # each size is 1 here
    expected = norm.scale.coefficients[rows, nodes] * log.exp()
    for i, z in enumerate((0.0, 2.0)):
        assert torch.allclose(args.weights.at(z)["scale"], expected[i], rtol=0, atol=1e-14)
    parts = model.structure(at(z=8))
    assert parts.depths[0].lengths == (0.5,) * 8
    _, args = norm.bind(parts.grids.with_depths(parts.depths[0]))
    p = own.fields["scale over d by p"].coefficients[1]
    for depth, place in ((1.0, -0.5), (1.5, 0.5)):  # the halves of the second native step
        expected = norm.scale.coefficients[1] * (place * p).exp() / (p / 2).cosh()
        assert torch.allclose(args.weights.at(depth)["scale"], expected, rtol=0, atol=1e-14)
    bare = elastic(gpt()).block.parts[0].norm.calibration
    assert (bare.fields["scale over d by d"].coefficients - HALF).abs().max() < 1e-7  # made in float32


@pytest.mark.spec("T11")
@pytest.mark.parametrize("adjoint", [Lean(), Recompute(), Checkpoint(2)], ids=str)
@pytest.mark.parametrize("wish", OTHERS, ids=str)
def test_every_adjoint_has_the_same_gradients_at_every_size(adjoint, wish) -> None:
    found = []
    for way in (Direct(), adjoint):
        model = calibrated(elastic(gpt()))
        model.adjoint = way
        model.at(**wish)(ids()).square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, plain in found[0].items():
        other = found[1][name]
        assert (plain is None) == (other is None), name
        if plain is not None:
            assert (plain - other).abs().max() <= 1e-12 * max(1.0, float(plain.abs().max())), name


@pytest.mark.spec("T11")
@pytest.mark.parametrize("along", ["dhzmep", "dhzme"])
def test_where_steps_are_searched_for_the_finest_calibration_holds(along: str) -> None:
    """Parts of steps have gains of their own since version 0.2: then the native calibration is the finest."""
    plain = json.dumps(to_plain(elastic(gpt()))).replace("dhzmep", along)
    model = calibrated(from_plain(json.loads(plain)).double())
    structure = model.structure(at(z=Adaptive()))
    field, args = model.bind(model.prepare(ids(), structure)[1], structure, Context())
    read = field.parts[0].f.read((0.5,), args[0])
    norm = model.block.parts[0].norm
    gain = norm.calibration.fields["scale over d by z"].coefficients[0]
    expected = norm.scale.coefficients[0] * ((0.0 if "p" in along else FINEST) * gain).exp()
    assert torch.allclose(read.norm.weights.at(0.5)["scale"], expected, rtol=0, atol=1e-14)


@pytest.mark.spec("B1")
def test_a_held_view_answers_alike_and_does_not_hear_of_changes() -> None:
    model = calibrated(elastic(gpt()))
    for wish in [{}, *OTHERS]:
        view = model.at(**wish)
        held = view.held()
        before = view(ids())
        assert torch.equal(held(ids()), before)
        assert not held(ids()).requires_grad
        assert torch.equal(held(ids()[:1, :4]), view(ids()[:1, :4])), "other batches too"
    kernel = model.block.parts[1].inner.w1.coefficients
    with torch.no_grad():
        kernel.mul_(2.0)
    assert torch.equal(held(ids()), before)
    assert not torch.equal(view(ids()), before)


@pytest.mark.spec("B1")
@pytest.mark.parametrize("wish", OTHERS, ids=str)
def test_a_size_writes_what_its_logits_say(wish) -> None:
    view, prompt = calibrated(elastic(gpt())).at(**wish), ids()[:, :3]
    written = view.generate(prompt, tokens=4)
    for n in range(3, 7):
        assert torch.equal(view(written[:, :n])[:, -1].argmax(-1), written[:, n])


@pytest.mark.spec("T11")
def test_what_stands_behind_the_flow_hears_of_its_steps() -> None:
    model = calibrated(elastic(gpt()))
    norm = model.readout.before[0]
    for wish, size in ((2, 1.0), (8, 0.0), (3, math.log2(4 / 3)), (Adaptive(), 0.0)):
        structure = model.structure(at(d=16, z=wish))
        _, args = norm.bind(structure.grids.with_depths(structure.behind))
        gain = norm.calibration.fields["scale over d by z"].coefficients
        expected = norm.scale.coefficients * (size * gain).exp()
        assert torch.allclose(args.weights.fixed["scale"], expected, rtol=0, atol=1e-14)


# --- the law ----------------------------------------------------------------------------------------------------------


def sizes_drawn(law: Elastic, model: Transformer, steps: int = 300) -> list[dict[str, int]]:
    sizes, found = law.over(model), []
    for step in range(steps):
        for lesson in sizes.draw(1.0, generator_for("test", step)):
            wish = lesson.at
            found.append({"d": wish.d, "h": wish.h, "z": wish.z})
    return found


@pytest.mark.spec("T11")
def test_sizes_are_a_function_of_seed_and_step_and_only_those_that_were_named() -> None:
    torch.manual_seed(0)
    model, law = elastic(zoo.gpt2(vocab=8, d=32, heads=4, depth=4, context=8)), Elastic(deep=0.28)
    drawn = sizes_drawn(law, model)
    assert drawn == sizes_drawn(law, model)
    sizes = law.over(model)
    assert all(sizes.drew(one) for one in drawn)
    seen = {letter: {one[letter] for one in drawn} for letter in "dhz"}
    assert seen["d"] == {16, 17, 18, 19, 21, 22, 23, 24, 26, 28, 30, 32}
    assert seen["h"] == {2, 4}
    assert seen["z"] == {2, 4, 8}
    for unseen in ({"d": 20}, {"h": 3}, {"z": 3}, {"d": 16, "z": 8}):
        assert not sizes.drew({"d": 32, "h": 4, "z": 4, **unseen})
    chosen = Elastic(d=(4, 32), h=(4,), z=(1, 4), deep=0.0)
    assert {tuple(one.values()) for one in sizes_drawn(chosen, model)} == {(a, 4, c) for a in (4, 32) for c in (1, 4)}


@pytest.mark.spec("T11")
def test_lessons_begin_at_the_start_and_cost_what_they_say() -> None:
    sizes = Elastic(start=0.5, draws=3, parts=4, deep=0.0).over(elastic(gpt()))
    assert sizes.draw(0.49, generator_for("a")) == []
    lessons = sizes.draw(0.5, generator_for("a"))
    assert len(lessons) == 3
    assert all(lesson.parts == 4 and 0 <= lesson.block < 4 for lesson in lessons)


@pytest.mark.spec("T11")
@pytest.mark.parametrize(
    "wrong", [{"draws": 0}, {"parts": 0}, {"start": 2.0}, {"distil": -1.0}, {"d": ()}, {"z": (0,)}]
)
def test_a_law_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        Elastic(**wrong)


@pytest.mark.spec("T11")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_blocks_of_processes_make_one_block_of_the_batch(processes) -> None:
    whole = torch.arange(16)
    for number in range(4):
        lesson = Lesson(at(d=8), number, 4)
        mine = [whole[rank::processes] for rank in range(processes)]
        together = torch.cat([part[block(len(part), lesson)] for part in mine]).sort().values
        assert torch.equal(together, whole[block(16, lesson)])


@pytest.mark.spec("T11")
def test_inner_and_hidden_widths_and_the_context_can_be_drawn_too() -> None:
    model = elastic(gpt())
    sizes = Elastic(e=(2, 4), m=(16, 64), t=(4, 7), start=0.0, deep=0.0).over(model)
    lessons = [lesson for step in range(60) for lesson in sizes.draw(1.0, generator_for("test", step))]
    assert {lesson.at.e for lesson in lessons} == {2, 4}
    assert {lesson.at.m for lesson in lessons} == {16, 64}
    assert {lesson.tokens for lesson in lessons} == {4, 7}
    task = tiny_task()
    example = task.example(0, 0)
    short = example.first(3)
    assert torch.equal(short.target, example.target[:, :3])
    assert torch.equal(short.batch.values, example.batch.values[:, :3])
    torch.manual_seed(0)
    model = elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context).double())
    objective = Objective(model, task)
    objective.elastic, objective.lessons = Elastic(), [Lesson(model.native, 0, 1, tokens=3)]
    _, terms = objective(example, Whole.of(example))
    assert abs(float(terms["elastic"])) < 1e-12, "a causal model answers as before"
    with refused(ConfigError, "got answers [32]", "Leave t out"):
        digits(batch=32).example(0, 0).first(2)


# --- the objective ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("T11")
@pytest.mark.parametrize("distil", [0.0, 0.3, 1.0])
def test_lessons_add_imitation_and_loss_of_their_block(distil) -> None:
    task = tiny_task()
    torch.manual_seed(0)
    model = elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context).double())
    example = task.example(0, 0)
    lessons = [Lesson(at(d=8), 1, 2), Lesson(at(z=1), 0, 4)]
    objective = Objective(model, task)
    plain, _ = objective(example, Whole.of(example))
    objective.elastic, objective.lessons = Elastic(distil=distil, weight=0.7), lessons
    value, terms = objective(example, Whole.of(example))
    teacher, wanted = model(example.batch).detach(), 0.0
    for lesson in lessons:
        rows = block(example.samples, lesson)
        part = example.rows(rows)
        answer = model.at(lesson.at)(part.batch)
        p, q = torch.log_softmax(teacher[rows], -1), torch.log_softmax(answer, -1)
        wanted += (1 - distil) * task.loss(answer, part) + distil * (p.exp() * (p - q)).sum()
    wanted = 0.7 * wanted / (example.count * 0.75)
    assert float((value - plain - wanted).detach().abs()) < 1e-12
    assert math.isclose(float(terms["elastic"]), float(wanted.detach()), rel_tol=1e-12)


@pytest.mark.spec("T11")
def test_imitation_vanishes_only_for_equal_answers() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert divergence(logits, logits + 3.0).abs().max() < 1e-14
    assert divergence(logits.flip(-1), logits).min() > 0


@pytest.mark.spec("T11")
def test_a_task_that_cannot_be_imitated_says_so() -> None:
    class Bare:
        def __init__(self, task) -> None:
            self.example, self.loss, self.evaluate = task.example, task.loss, task.evaluate

    task = tiny_task()
    model = elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context))
    with refused(ConfigError, "no way to imitate", "distil=0"):
        fit(model, Bare(task), steps=1, elastic=Elastic(start=0.0), watch=lambda at: None)
    fit(model, Bare(task), steps=1, elastic=Elastic(start=0.0, distil=0.0), watch=lambda at: None)


@pytest.mark.spec("T11")
def test_other_sizes_learn_and_a_resumed_run_ends_with_the_same_bits(tmp_path) -> None:
    task, law = tiny_task(), Elastic(start=0.25)

    def model() -> Transformer:
        torch.manual_seed(0)
        return elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context))

    first = model()
    before = task.evaluate(first.at(d=8, h=2, z=1)).main
    whole = fit(first, task, steps=40, elastic=law, watch=lambda at: None)
    assert task.evaluate(whole.model.eval().at(d=8, h=2, z=1)).main < before
    assert "elastic" not in whole.history[5]
    assert whole.history[-1]["elastic"] > 0
    given = {"elastic": law, "save_every": 5, "watch": lambda at: None}
    straight = fit(model(), task, run=tmp_path / "straight", steps=17, **given).model
    with pytest.raises(Stop):
        fit(model(), Broken(task, 11), run=tmp_path / "cut", steps=17, **given)
    cut = fit(model(), task, run=Run.open(tmp_path / "cut"), steps=17, **given).model
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, dict(cut.named_parameters())[name]), name


class Broken:
    """A task that ends the process at a step, past everything that would save the run."""

    def __init__(self, task, step: int) -> None:
        self.task, self.step = task, step

    def __getattr__(self, name: str):
        return getattr(self.task, name)

    def imitation(self, answer, teacher, example):
        return self.task.imitation(answer, teacher, example)

    def example(self, seed: int, step: int):
        if step == self.step:
            raise Stop
        return self.task.example(seed, step)


class Stop(BaseException):
    """Not an error that anybody handles."""


@pytest.mark.spec("T11")
def test_training_keeps_the_law() -> None:
    training = Training(elastic=Elastic(d=(8, 16), start=0.1))
    assert from_plain(to_plain(training)) == training
