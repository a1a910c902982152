"""The lab as a whole: its shelves import in one direction, and names that 0.1 exported still work."""

import pytest
import torch

from continua import lab
from continua.training import Progress
from tests.house.rules import ROOT, modules, targets
from tests.runs import silent, tiny_model

SHELVES = ["figure", "progress", "particles", "theory", "probes", "cost", "canvas"]

OF_0_1 = [
    "INTERACTIONS",
    "PATTERNS",
    "Along",
    "AttentionMap",
    "Branch",
    "ByFourier",
    "ByHarmonics",
    "Cell",
    "Chaos",
    "Clusters",
    "Complexity",
    "Cost",
    "Course",
    "Dense",
    "Density",
    "Depth",
    "Dynamics",
    "Fused",
    "Hardmax",
    "Harmonics",
    "Head",
    "HeadSpectra",
    "Interaction",
    "Iteration",
    "Ladder",
    "MeanField",
    "Norm",
    "Pareto",
    "Particles",
    "Phase",
    "Plateau",
    "Point",
    "SelfAttention",
    "Separation",
    "Simulation",
    "Sinkhorn",
    "Sinks",
    "SphereField",
    "Substeps",
    "Unnormalised",
    "Verdict",
    "antipodal",
    "attention_maps",
    "attribution",
    "causal_limit",
    "chaos",
    "circle_wasserstein",
    "clustered",
    "clusters",
    "collapse_rate",
    "consensus_rate",
    "continuation",
    "controlled",
    "crossovers",
    "depth_front",
    "dynamics",
    "energies",
    "energy",
    "energy_gradient",
    "energy_rate",
    "entropy",
    "equiangular",
    "equiangular_pre_norm",
    "film",
    "fixed_point",
    "free",
    "growth_rates",
    "hardmax_leaders",
    "head_table",
    "iterate",
    "jacobian",
    "k_max",
    "ladder",
    "layer_factor",
    "layers",
    "leaders",
    "line_wasserstein",
    "log_energy",
    "log_growth_rates",
    "look",
    "mean_cosine",
    "mean_entropy",
    "mean_field",
    "overclustered",
    "pareto",
    "parked",
    "pattern_scores",
    "phase_diagram",
    "plateaus",
    "plot_attention",
    "plot_cosines",
    "plot_counts",
    "plot_density",
    "plot_depth",
    "plot_energy",
    "plot_entropy",
    "plot_globe",
    "plot_growth",
    "plot_iteration",
    "plot_jumps",
    "plot_ladder",
    "plot_paths",
    "plot_patterns",
    "plot_phase",
    "plot_rollout",
    "plot_spectra",
    "plot_staircase",
    "polygon_rates",
    "predict",
    "rollout",
    "rotated_rates",
    "separation",
    "simulate",
    "sinkhorn_energy",
    "size_grid",
    "sliced_wasserstein",
    "spectra",
    "spectrum",
    "sphere_mean_field",
    "sphere_wasserstein",
    "stability",
    "substeps",
    "synchronised",
]

RENAMED = {"Along": "ProbeEvery", "Cost": "CostItem", "Course": "History"}


def test_a_shelf_imports_only_those_before_it():
    found = modules(ROOT)
    names = {module.name for module in found}
    upwards = [
        f"{module.shown} imports {target}"
        for module in found
        if module.room == "lab" and module.name.count(".") > 1
        for target, _ in targets(module, names)
        if target.startswith("continua.lab.")
        if SHELVES.index(target.split(".")[2]) > SHELVES.index(module.name.split(".")[2])
    ]
    assert not upwards
    assert {module.name.split(".")[2] for module in found if module.name.startswith("continua.lab.")} == {*SHELVES}


@pytest.mark.parametrize("name", OF_0_1)
def test_names_of_0_1(name):
    """Renamed ones say so; the old name goes with the next version."""
    if name not in RENAMED:
        assert getattr(lab, name) is not None
        return
    with pytest.warns(DeprecationWarning, match=f"{name} is called {RENAMED[name]} now"):
        old = getattr(lab, name)
    assert old is getattr(lab, RENAMED[name])


def test_attributes_of_0_1():
    probing = lab.ProbeEvery(tiny_model(), torch.arange(1, 7)[None], every=1, watch=silent)
    probing(Progress(1, 2, 1.0, {}))
    with pytest.warns(DeprecationWarning, match="course is called history now"):
        assert probing.course == probing.history
    with pytest.warns(DeprecationWarning, match="glances is called snapshots now"):
        assert probing.history.glances == probing.history.snapshots


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'Alone'"):
        lab.Alone  # noqa: B018
