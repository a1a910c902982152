"""L5: phase diagrams, which stop anywhere and go on, and the number of clusters of many runs."""

import json
import math
from itertools import pairwise

import pytest
import torch

from continua.errors import ConfigError, ContinuaError, RunError
from continua.flow import Adaptive
from continua.lab.particles.clusters import clusters
from continua.lab.particles.interaction import Hardmax, SelfAttention, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from continua.lab.particles.sums import ByFourier
from continua.lab.theory import phase
from continua.lab.theory.phase import Cell, Phase, phase_diagram
from tests.refusals import refused

pytestmark = pytest.mark.spec("L5")

SMALL = {"betas": [0.0, 9.0], "ds": [2, 3], "ns": [12], "until": 8.0, "runs": 2}


class Stopped(Exception):
    pass


@pytest.fixture
def measured(monkeypatch) -> list[tuple[float, int, int]]:
    """The cells that were simulated."""
    seen, real = [], phase.measure

    def counting(interaction, key, *rest):
        seen.append(key)
        return real(interaction, key, *rest)

    monkeypatch.setattr(phase, "measure", counting)
    return seen


def test_cells_say_what_happened(generator):
    found = phase_diagram([0.0, 16.0], [2, 4], [8, 24], until=12.0, runs=4)
    assert found.values().shape == (2, 2, 2)
    assert found.axis("beta") == [0.0, 16.0]
    assert found.axis("n") == [8, 24]
    consensus, apart = found.cell(0.0, 4, 24), found.cell(16.0, 2, 24)
    assert (consensus.count, consensus.deviation, consensus.merged) == (1.0, 0.0, 1.0)
    assert consensus.cosine > 0.999  # 1 − ⟨cos⟩ falls as e^{−2t}
    assert 0.0 < consensus.time < 8.0
    assert apart.count > 2.5
    assert (apart.merged, apart.time) == (0.0, None)
    assert math.isnan(found.values("time")[1, 0, 1])
    assert found.values("merged")[0].min() == 1.0


def test_a_cell_is_what_its_runs_are():
    found = phase_diagram([4.0], [3], [10], until=5.0, runs=[7, 3]).cells[0]
    ends = [
        simulate(SelfAttention(4.0), Particles.uniform(10, 3, torch.Generator().manual_seed(seed)), 5.0).final
        for seed in (7, 3)
    ]
    counts = [clusters(end, 0.25).count.item() for end in ends]
    cosines = [end.x.mean(0).square().sum().item() for end in ends]
    assert found.count == pytest.approx(sum(counts) / 2)
    assert found.cosine == pytest.approx(sum(cosines) / 2, rel=1e-3)  # the tolerance of a sweep is 1e-4
    assert found == phase_diagram([4.0], [3], [10], until=5.0, runs=[7, 3]).cells[0]
    assert found.runs == 2


def test_many_runs_are_split_and_agree(monkeypatch):
    whole = phase_diagram([4.0], [2], [10], until=5.0, runs=5).cells[0]
    monkeypatch.setattr(phase, "AT_ONCE", 40)
    parts = phase_diagram([4.0], [2], [10], until=5.0, runs=5).cells[0]
    assert parts.count == whole.count
    assert parts.cosine == pytest.approx(whole.cosine, abs=1e-3)


def test_the_time_of_the_last_merger():
    """Two tokens at β = 0: tan(θ/2) falls as e^{−t}; each is θ/2 from the centre, and one cluster when that is 0.5."""
    starts = [Particles.uniform(2, 2, torch.Generator().manual_seed(seed)).x for seed in (0, 1)]
    angles = [math.acos(float(x[0] @ x[1])) for x in starts]
    wanted = [max(0.0, math.log(math.tan(a / 2) / math.tan(0.5))) for a in angles]
    found = phase_diagram([0.0], [2], [2], until=6.4, runs=2).cells[0]
    assert found.time == pytest.approx(sum(wanted) / 2, abs=0.1)  # a frame is 0.1
    assert max(wanted) > 0.2


@pytest.mark.parametrize("stop", [0.3, 0.6, 0.99])
def test_a_sweep_goes_on_where_it_stopped(stop, measured, tmp_path):
    whole = phase_diagram(**SMALL)
    measured.clear()

    def watch(share: float) -> None:
        if share > stop:
            raise Stopped

    with pytest.raises(Stopped):
        phase_diagram(**SMALL, folder=tmp_path, watch=watch)
    before = len(Phase.load(tmp_path).cells)
    assert before == int(stop * 4)
    measured.clear()
    assert phase_diagram(**SMALL, folder=tmp_path) == whole
    assert len(measured) == 4 - before
    measured.clear()
    assert phase_diagram(**SMALL, folder=tmp_path) == whole
    assert measured == []


def test_a_line_cut_short_costs_one_cell(measured, tmp_path):
    whole = phase_diagram(**SMALL, folder=tmp_path)
    file = tmp_path / "cells.jsonl"
    file.write_text(file.read_text()[:-20])
    measured.clear()
    assert phase_diagram(**SMALL, folder=tmp_path) == whole
    assert measured == [(9.0, 3, 12)]
    lines = file.read_text().splitlines()
    assert len(lines) == 4
    file.write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]) + "\n")
    measured.clear()
    assert phase_diagram(**SMALL, folder=tmp_path) == whole
    assert len(measured) == 1


def test_a_sweep_grows(measured, tmp_path):
    phase_diagram(**SMALL, folder=tmp_path)
    measured.clear()
    more = phase_diagram(**{**SMALL, "betas": [0.0, 4.0, 9.0]}, folder=tmp_path)
    assert sorted(measured) == [(4.0, 2, 12), (4.0, 3, 12)]
    assert len(more.cells) == 6
    assert len(Phase.load(tmp_path).cells) == 6


def test_another_sweep_is_refused_and_nothing_is_lost(tmp_path):
    whole = phase_diagram(**SMALL, folder=tmp_path)
    with refused(RunError, "seeds=[0, 1, 2] where [0, 1]", "Use another folder"):
        phase_diagram(**{**SMALL, "runs": 3}, folder=tmp_path)
    with refused(RunError, "interaction=USA where SA", "Use another folder"):
        phase_diagram(**SMALL, interaction=Unnormalised, folder=tmp_path)
    with refused(RunError, "matrices=", "Use another folder"):
        turned = -torch.eye(2, dtype=torch.float64)
        phase_diagram(**SMALL, interaction=lambda beta: SelfAttention(beta, v=turned), folder=tmp_path)
    with refused(RunError, "feed=", "Use another folder"):
        phase_diagram(**SMALL, interaction=lambda beta: SelfAttention(beta, feed=torch.tanh), folder=tmp_path)
    with refused(RunError, "until=4 where 8 was at β=0, d=2, n=12", "Use another folder"):
        phase_diagram(**{**SMALL, "until": 4.0}, folder=tmp_path)
    assert phase_diagram(**SMALL, folder=tmp_path) == whole
    (tmp_path / "about.json").write_text("{")
    with refused(RunError, "about.json", "the cells are in cells.jsonl"):
        phase_diagram(**SMALL, folder=tmp_path)
    assert Phase.load(tmp_path) == whole


def test_a_cell_that_fails_keeps_the_others(tmp_path):
    with pytest.raises(ContinuaError, match="e\\^β"):
        phase_diagram([1.0, 1000.0], [2], [8], until=1.0, runs=1, interaction=Unnormalised, folder=tmp_path)
    assert [cell.beta for cell in Phase.load(tmp_path).cells] == [1.0]


def test_the_time_may_depend_on_the_cell(tmp_path):
    found = phase_diagram([0.0, 4.0], [2, 3], [6], lambda beta, d: 2.0 + beta / d, runs=1, folder=tmp_path)
    assert [cell.until for cell in found.cells] == [2.0, 2.0, 4.0, 2.0 + 4 / 3]


def test_progress_rises_to_one():
    seen = []
    phase_diagram(**SMALL, watch=seen.append)
    assert seen[-1] == 1.0
    assert len(seen) > 20
    assert all(b > a - 0.1 for a, b in pairwise(seen))  # the stages of a step look back a little


def test_noise_and_hardmax_have_cells():
    noisy = phase_diagram([4.0], [2], [6], 1.0, runs=1, interaction=lambda beta: SelfAttention(beta, kappa=10.0))
    assert noisy.cells[0].count >= 1
    assert noisy == phase_diagram(
        [4.0], [2], [6], 1.0, runs=1, interaction=lambda beta: SelfAttention(beta, kappa=10.0)
    )
    assert phase_diagram([4.0], [2], [6], 1.0, runs=1, interaction=Hardmax).cells[0].count >= 1


def test_save_and_load(tmp_path):
    found = Phase(
        (Cell(1.0, 2, 8, 16.0, 4, 1.5, 0.5, 0.2, 0.5, 3.0), Cell(9.0, 2, 8, 16.0, 4, 4.0, 0.0, 0.01, 0.0, None))
    )
    assert Phase.load(found.save(tmp_path / "new" / "phase.json")) == found
    assert json.loads((tmp_path / "new" / "phase.json").read_text())["cells"][1]["time"] is None
    with refused(RunError, "nowhere.json", "Phase.save"):
        Phase.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("changes", "got", "remedy"),
    [
        ({"betas": []}, "an empty list", "at least one β"),
        ({"ns": []}, "an empty list", "at least one β"),
        ({"runs": 0}, "none", "runs=8"),
        ({"betas": [math.nan]}, "β=nan, d=2, n=12", "finite β"),
        ({"ds": [1]}, "β=0, d=1, n=12", "d ≥ 2"),
        ({"ns": [0]}, "β=0, d=2, n=0", "n ≥ 1"),
        ({"until": 0.0}, "0 at β=0", "until=16.0"),
        ({"until": math.inf}, "inf at β=0", "until=16.0"),
    ],
)
def test_refusals(changes, got, remedy, tmp_path):
    with refused(ConfigError, got, remedy):
        phase_diagram(**{**SMALL, **changes}, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_not_there_is_refused():
    found = phase_diagram([1.0], [2], [4], 1.0, runs=1)
    with refused(ConfigError, "colour", "Known: beta, d, n"):
        found.values("colour")
    with refused(ConfigError, "β=2, d=2, n=4", ".axis('beta')"):
        found.cell(2.0, 2, 4)


@pytest.mark.slow(reason="60 runs of 2,000 tokens")
def test_sixty_runs_of_two_thousand_tokens_have_about_3_77_clusters(generator):
    """iid uniform tokens on the circle, SA at β = 9, t = 16, gaps above 0.5/√β: 3.77 ± 0.3, where k_max is 4."""
    start = Particles.uniform(2000, 2, generator, runs=60)
    interaction = SelfAttention(9.0, sums=ByFourier(block=256))
    run = simulate(interaction, start, 16.0, save=2, control=Adaptive(rtol=1e-3, atol=1e-6, max_steps=10_000))
    count = clusters(run).count[-1]
    assert count.shape == (60,)
    assert count.double().mean().item() == pytest.approx(3.77, abs=0.3)
