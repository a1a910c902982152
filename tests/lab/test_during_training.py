"""L9: the probes along a run. They see what is there, disturb nothing, and lose nothing."""

import json
import math
from functools import partial

import pytest
import torch

import continua as ct
from continua.errors import ConfigError, RunError
from continua.lab.probes.during_training import LINES, History, ProbeEvery, probe
from continua.lab.probes.dynamics import dynamics
from continua.models import Batch
from continua.training import Progress, Run
from tests.families import FAMILIES
from tests.refusals import refused
from tests.runs import FAST, silent, tiny_model, tiny_task

SETTINGS = {"optimiser": FAST, "evaluate_every": 100}


def seen_batch() -> Batch:
    return Batch(tiny_task(batch=3).example(99, 0).batch.values)


def trained(folder=None, steps=6, every=2, watch=silent, **settings):
    """A tiny fit with a watcher: both."""
    model = tiny_model(dropout=0.2)
    probing = ProbeEvery(model, seen_batch(), folder, every, watch)
    run = Run.open(folder) if folder is not None and (folder / "run.json").exists() else folder
    return ct.fit(model, tiny_task(), run=run, watch=probing, steps=steps, **SETTINGS, **settings), probing


def steps_in(path):
    """The steps of a file of lines, read with nothing of the library."""
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


class Cut(Exception):
    """A run that ends without being asked."""


def cut_at(step):
    def watch(at):
        if at.step == step:
            raise Cut

    return watch


# --- what is seen ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L9")
def test_training_does_not_notice():
    """Dropout, batches and all weights are the same bits with a watcher and without."""
    plain = tiny_model(dropout=0.2)
    before = ct.fit(plain, tiny_task(), watch=silent, steps=5, **SETTINGS)
    done, probing = trained(steps=5, every=1)
    assert [snapshot.step for snapshot in probing.history.snapshots] == list(range(6))
    for (name, one), other in zip(plain.state_dict().items(), done.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    losses = [[line["loss"] for line in each.history] for each in (before, done)]
    assert losses[0] == losses[1]


@pytest.mark.spec("L9")
def test_modes_checks_and_random_numbers_are_put_back():
    model = tiny_model(dropout=0.2)
    model.train()
    model.embed.eval()  # a frozen part
    model.check = False
    drawn = []

    def drawing(given, batch):
        assert not given.training or given.check  # whoever looks sees a model that says what is wrong
        drawn.append(torch.rand(3))
        return probe(given, batch)

    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    probing = ProbeEvery(model, seen_batch(), watch=silent, every=1, probe=drawing)
    probing(Progress(1, 2, 1.0, {}))
    assert len(drawn) == 2
    assert torch.equal(torch.rand(2), expected)
    assert (model.training, model.embed.training, model.check) == (True, False, False)


@pytest.mark.spec("L9")
def test_rows_are_those_of_the_probes():
    start = dynamics(tiny_model(), seen_batch(), sinks=None)
    done, probing = trained(steps=5)
    history = probing.history
    assert [snapshot.step for snapshot in history.snapshots] == [0, 2, 4, 5]  # every other step, and the last
    assert history.snapshots[0].found == start
    assert history.snapshots[-1].found == dynamics(done.model.eval(), seen_batch(), sinks=None)
    assert history.snapshots[-1].loss == done.history[-1]["loss"]
    rows = history.rows()
    assert len(rows) == 4 * 3  # two layers have three depths
    assert [(row["step"], row["layer"]) for row in rows[:4]] == [(0, 0), (0, 1), (0, 2), (2, 0)]
    assert rows[-1] == {
        "step": 5,
        "loss": history.snapshots[-1].loss,
        "layer": 2,
        **history.snapshots[-1].found.rows()[-1],
    }
    steps, jumps = history.curve("jump", 1)
    assert steps == [0, 2, 4, 5]
    assert jumps[-1] == history.snapshots[-1].found.moves[1].jump
    assert history.curve("jump", 2) == ([], [])  # behind the last layer nothing jumps
    assert history.rows()[0]["loss"] is None


@pytest.mark.spec("L9")
def test_other_probes_and_views():
    model = tiny_model()
    wider = ProbeEvery(model.at(z=4), seen_batch(), watch=silent, probe=partial(dynamics, beta=3.0, bins=8, sinks=None))
    found = wider.history.snapshots[0].found
    assert (found.beta, len(found.states), len(found.states[0].histogram)) == (3.0, 5, 8)


@pytest.mark.spec("L9")
def test_the_bar_stays():
    """Another watcher is told every step and let go of at the end; without one it is the bar."""
    told, closed = [], []

    class Told:
        def __call__(self, at):
            told.append(at.step)

        def close(self):
            closed.append(True)

    trained(steps=3, watch=Told())
    assert told == [1, 2, 3]
    assert closed == [True]
    assert isinstance(ProbeEvery(tiny_model(), seen_batch()).watch, ct.training.Bar)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L9")
def test_lines_are_written_as_it_goes(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Cut):
        trained(folder, watch=cut_at(5))
    assert steps_in(folder / LINES) == [0, 2, 4]
    with (folder / LINES).open("a") as file:  # killed in the middle of a line
        file.write('{"step": 6, "loss": 1.0, "fou')
    history = History.load(folder)
    assert [snapshot.step for snapshot in history.snapshots] == [0, 2, 4]
    again = History.load(history.save(tmp_path / "kept" / "history.jsonl"))
    assert again == history  # every number to its last bit


@pytest.mark.spec("L9")
def test_a_resumed_run_goes_on_with_its_lines(tmp_path):
    """Cut after step 5, with a checkpoint of step 3: what was seen later is seen again, and is the same."""
    _, whole = trained(tmp_path / "whole", save_every=3)
    with pytest.raises(Cut):
        trained(tmp_path / "cut", save_every=3, watch=cut_at(5))
    lines = tmp_path / "cut" / LINES
    assert steps_in(lines) == [0, 2, 4]
    *first, last = lines.read_text().splitlines(keepends=True)
    lines.write_text("".join([*first, json.dumps({**json.loads(last), "loss": 99.0})]))
    _, probing = trained(tmp_path / "cut", save_every=3)
    assert probing.history == whole.history
    assert History.load(tmp_path / "cut") == whole.history


@pytest.mark.spec("L9")
def test_lines_of_another_run_are_not_mixed_in(tmp_path):
    """A file left over in a folder without checkpoints is of no run: it is begun anew."""
    folder = tmp_path / "run"
    folder.mkdir()
    old = ProbeEvery(tiny_model(), seen_batch(), every=1, watch=silent)
    old(Progress(1, 9, 1.0, {}))
    old.history.save(folder / LINES)
    trained(folder, steps=3)
    assert steps_in(folder / LINES) == [0, 2, 3]
    seen = ProbeEvery(tiny_model(), seen_batch(), run=Run.open(folder), watch=silent)
    assert [snapshot.step for snapshot in seen.history.snapshots] == [0, 2, 3]


@pytest.mark.spec("L9")
def test_a_run_that_goes_back_forgets():
    probing = ProbeEvery(tiny_model(), seen_batch(), every=2, watch=silent)
    for step in range(1, 8):
        probing(Progress(step, 20, 1.0, {}))
    assert [snapshot.step for snapshot in probing.history.snapshots] == [0, 2, 4, 6]
    probing(Progress(4, 20, math.nan, {}, "4 bad steps in a row: back to step 4, with other data"))
    assert [snapshot.step for snapshot in probing.history.snapshots] == [0, 2, 4]
    for step in (5, 6):
        probing(Progress(step, 20, math.nan, {}))
    assert [snapshot.step for snapshot in probing.history.snapshots] == [0, 2, 4, 6]
    assert probing.history.snapshots[-1].loss is None  # not a number


@pytest.mark.spec("L9")
def test_a_snapshot_that_fails_costs_a_warning():
    model = tiny_model()
    probing = ProbeEvery(model, seen_batch(), every=1, watch=silent)
    kept = model.block.parts[0].inner.q.coefficients.detach().clone()
    with torch.no_grad():
        model.block.parts[0].inner.v.coefficients.fill_(math.nan)
    model.check = False
    with pytest.warns(UserWarning, match="step 1 was not probed, training goes on"):
        probing(Progress(1, 3, 1.0, {}))
    assert model.check is False
    with torch.no_grad():
        model.block.parts[0].inner.v.coefficients.copy_(kept)
    probing(Progress(2, 3, 1.0, {}))
    assert [snapshot.step for snapshot in probing.history.snapshots] == [0, 2]


@pytest.mark.spec("L9")
def test_a_disk_that_refuses_costs_a_warning(tmp_path):
    blocked = tmp_path / "run" / LINES
    blocked.mkdir(parents=True)
    probing = ProbeEvery(tiny_model(), seen_batch(), run=tmp_path / "run", every=1, watch=silent)
    with pytest.warns(UserWarning, match=f"{LINES} was not written"):
        probing(Progress(1, 4, 1.0, {}))
    blocked.rmdir()
    probing(Progress(2, 4, 1.0, {}))
    probing(Progress(3, 4, 1.0, {}))
    assert steps_in(blocked) == [0, 1, 2, 3]  # nothing was lost


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L9")
def test_what_cannot_be_watched_is_refused_before_training():
    with refused(ConfigError, "0", "100 is usual"):
        ProbeEvery(tiny_model(), seen_batch(), every=0)
    with refused(ConfigError, "Linear", "Pass a Transformer"):
        ProbeEvery(torch.nn.Linear(2, 2), seen_batch())
    with refused(ConfigError, "attention to another state", "Known are blocks"):
        ProbeEvery(FAMILIES["t5"].make().decoder, seen_batch())


@pytest.mark.spec("L9", "A4")
def test_of_an_encoder_decoder_the_encoder_is_watched():
    model, batch = FAMILIES["t5"].make(), FAMILIES["t5"].batch
    model.execution.check = False
    watched = ProbeEvery(model, batch).history.rows()
    assert watched == ProbeEvery(model.encoder, batch.source).history.rows()
    assert not model.execution.check


@pytest.mark.spec("L9")
def test_sharded_weights_are_refused():
    model = tiny_model()
    probing = ProbeEvery(model, seen_batch(), every=1, watch=silent)
    next(model.parameters()).full_tensor = lambda: None  # what a sharded one has
    with refused(ConfigError, "sharded ones", "sharded=False"):
        probing(Progress(1, 2, 1.0, {}))


@pytest.mark.spec("L9")
def test_nothing_to_show(tmp_path):
    with refused(RunError, "dynamics.jsonl", "Train with fit"):
        History.load(tmp_path)
    for draw in (History(()).plot, History(()).film):
        with refused(ConfigError, "no snapshot", "Train a step"):
            draw(tmp_path / "x.gif")
    history = ProbeEvery(tiny_model(), seen_batch(), watch=silent).history
    with refused(ConfigError, "x.mp4", "Write x.gif"):
        history.film(tmp_path / "x.mp4")
    for name, layer in (("speed", 0), ("jump", 9)):
        with refused(ConfigError, f"'{name}' at layer {layer}", "rows()"):
            history.curve(name, layer)


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L9", "L10")
def test_pictures_are_written(tmp_path):
    from PIL import Image

    probing = ProbeEvery(tiny_model(), seen_batch(), every=2, watch=silent)
    for step in range(1, 5):
        probing(Progress(step, 4, 1.0 / step, {}))
    assert probing.history.plot(tmp_path / "new" / "curves.png").stat().st_size > 20_000
    film = probing.history.film(tmp_path / "new" / "film.gif", rate=2.0)
    with Image.open(film) as opened:
        assert opened.n_frames >= 3  # steps 0, 2 and 4; equal frames at the end may be one
