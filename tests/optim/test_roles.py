"""Which parameter is what, which of its dimensions are rows, and which optimiser gets it."""

import json

import pytest
import torch
from torch import nn

from continua import config, fields, optim
from continua.errors import ConfigError
from continua.fields import ByNetwork, Expansion, Fourier, counted, kernel
from continua.fields.role import DENSITY, GAIN, HEAD, LIFT, NETWORK, SHIFT, TABLE, VECTOR
from continua.models.init import Scaled, initialise
from continua.optim import AdamW, ByRole, Mirror, Muon, Rescaled, Role, Unfolding, Use, parameter_info, roles
from tests import cases, cases_models
from tests.refusals import refused

BLOCK = "block.parts."
READS = Role(Use.KERNEL, inputs="c")
BY_HAND = {
    "gpt2": {
        "embed.table.coefficients": TABLE,
        "embed.position.table.coefficients": TABLE,
        f"{BLOCK}0.norm.scale.coefficients": GAIN,
        f"{BLOCK}0.norm.shift.coefficients": SHIFT,
        f"{BLOCK}0.inner.q.coefficients": READS,
        f"{BLOCK}0.inner.o.coefficients": Role(Use.KERNEL, "he", is_output=True),
        f"{BLOCK}0.inner.bq.coefficients": SHIFT,
        f"{BLOCK}1.inner.w1.coefficients": READS,
        f"{BLOCK}1.inner.b1.coefficients": SHIFT,
    },
    "continuous words": {"embed.table.coefficients": TABLE, f"{BLOCK}0.inner.v.coefficients": READS},
    "generated": {
        "readout.bias": SHIFT,
        "readout.head.coefficients": HEAD,
        f"{BLOCK}0.inner.density.coefficients": DENSITY,
        f"{BLOCK}0.inner.density.networks.z.outer": NETWORK,
        f"{BLOCK}0.norm.scale.networks.z.rest": NETWORK,
        f"{BLOCK}1.inner.w2.coefficients": Role(Use.KERNEL, "m", is_output=True),
    },
    "separable networks": {f"{BLOCK}0.inner.q.factors.c.inner": NETWORK},
    "joint networks": {f"{BLOCK}0.inner.q.inner.c": NETWORK, "embed.table.coefficients": LIFT},
    "memory of keys and values": {"decoder.bank.keys.coefficients": TABLE},
    "graph attention": {f"{BLOCK}0.inner.q.coefficients": READS, "embed.bias.coefficients": SHIFT},
    "position relative": {f"{BLOCK}0.inner.position.table.coefficients": TABLE},
    "vit": {"embed.table.coefficients": LIFT, "embed.first.coefficients": VECTOR},
    "albert": {"embed.map.coefficients": LIFT, "embed.bias.coefficients": SHIFT},
    "functions on a circle": {f"{BLOCK}0.norm.kernel.coefficients": Role(Use.TABLE, "c")},
}


KERNELS = {  # the letters of the rows and of the columns; experts are an axis like that of heads
    "hec": ("he", "c"),
    "dhe": ("d", "he"),
    "mc": ("m", "c"),
    "dm": ("d", "m"),
    "dc": ("d", "c"),
    "hc": ("h", "c"),
    "hmc": ("hm", "c"),
    "hdm": ("hd", "m"),
}


@pytest.mark.spec("T6")
@pytest.mark.parametrize("name", BY_HAND)
def test_roles_named_by_hand(name: str) -> None:
    found = roles(cases.MODELS[name].build())
    assert {key: found.get(key) for key in BY_HAND[name]} == BY_HAND[name]


@pytest.mark.spec("T6")
@pytest.mark.parametrize("name", cases.MODELS)
def test_every_parameter_has_the_role_of_its_letters(name: str) -> None:
    model = cases.MODELS[name].build()
    found, known, densities = roles(model), parameter_info(model), set()
    assert set(found) == set(known) == {key for key, _ in model.named_parameters()}
    for prefix, module in model.named_modules():
        if getattr(module, "density", None) is not None:
            densities.add(f"{prefix}.density.coefficients")
    for prefix, module in model.named_modules():
        key = f"{prefix}.coefficients"
        if not isinstance(module, Expansion) or key not in found:
            continue
        widths = "".join(module.letters).removeprefix("z")
        use = found[key].use
        if key in densities:
            assert use is Use.DENSITY
        elif "n" in widths and use is Use.KERNEL:  # one matrix for each tap of a stem
            assert widths == "ndc"
            assert found[key].inputs == "c"
            continue
        elif widths == "n":  # one shift for each of some slices
            assert use is Use.SHIFT
        elif "n" in widths:
            assert (use is Use.TABLE) == (module.bases["n"].size > 1)
            assert use in (Use.TABLE, Use.VECTOR, Use.SHIFT)
        else:
            assert (use is Use.KERNEL) == (widths not in ("d", "m", "h", "e", "he", "c")), key
        if use is Use.KERNEL:  # every kernel has rows and columns, and integrates over the latter
            rows, columns = KERNELS[widths]
            assert found[key].inputs == columns
            sizes = {letter: basis.size for letter, basis in module.bases.items()}
            count = sizes.get("z", 1), _size(sizes, rows), _size(sizes, columns)
            assert tuple(known[key].matrices(module.coefficients).shape) == count


def _size(sizes: dict[str, int], letters: str) -> int:
    size = 1
    for letter in letters:
        size *= sizes[letter]
    return size


@pytest.mark.spec("T6")
def test_one_call_assigns_every_role() -> None:
    model = cases.MODELS["density"].build()
    chosen = ByRole(Muon(0.01), table=AdamW(1e-3), density=Mirror(0.1))
    made = chosen.make(model)
    assert sorted(name for part in made.parts for name in part.names) == sorted(dict(model.named_parameters()))
    held = {
        type(part.chosen).__name__: part.names for part in made.parts if part.chosen.lr != 1e-3 or part.chosen.decay
    }
    assert all("density" in name for name in held["Mirror"])
    assert {name.split(".")[-2] for name in held["Muon"]} == {"q", "k", "v", "o", "w1", "w2"}
    assert set(held["AdamW"]) == {
        "embed.table.coefficients",
        "embed.position.table.coefficients",
        "readout.head.coefficients",
    }
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(cases.words()).square().mean().backward()
    made.step(1.0)
    still = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert not {name for name in still if model.get_parameter(name).grad.abs().max() > 1e-6}


@pytest.mark.spec("T6")
def test_what_is_no_matrix_is_left_to_others() -> None:
    model = cases.MODELS["generated"].build()
    parts = ByRole(Rescaled(Muon(0.01, others=AdamW(5e-4)))).make(model).parts
    matrices = next(part.names for part in parts if isinstance(part.chosen, Rescaled))
    assert any(name.endswith("networks.z.inner") for name in matrices)
    assert not any(name.endswith(("networks.z.shift", "norm.scale.coefficients")) for name in matrices)


@pytest.mark.spec("T6")
def test_scale_makes_the_norm_that_of_the_operator() -> None:
    """‖scale · C‖₂ is the norm of f ↦ ∫K f dμ between L² spaces, here computed on a fine grid."""
    from continua.axes import Circle, GaussLegendre, Interval, Midpoint, grid_on

    axes = {"d": Interval(0.0, 2.0, mass=3.0), "c": Circle(1.5)}
    for bases in (
        {"d": fields.Legendre(4), "c": fields.Fourier(5)},
        {"d": fields.Cosine(4), "c": fields.Fourier(3)},
    ):
        kernel = Expansion(axes, bases, std=1.0, role=READS).double()
        module = nn.Module()
        module.add_module("k", kernel)
        own = parameter_info(module)["k.coefficients"]
        d, c = grid_on(axes["d"], GaussLegendre(40)), grid_on(axes["c"], Midpoint(40))
        dense = d.weights.sqrt()[:, None] * kernel.on(d=d, c=c) * c.weights.sqrt()
        wanted = torch.linalg.matrix_norm(dense, 2)
        got = own.scale * torch.linalg.matrix_norm(own.matrices(kernel.coefficients)[0], 2)
        assert abs(got / wanted - 1) < 1e-10


@pytest.mark.spec("T6")
def test_unfolding_is_what_its_letters_say() -> None:
    q = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    assert torch.equal(Unfolding(1, 2).matrices(q)[1], q[1].reshape(12, 5))
    assert torch.equal(Unfolding(1, 1).matrices(q)[1], q[1].reshape(3, 20))


@pytest.mark.spec("T6")
def test_vectors_without_a_role_are_refused() -> None:
    with refused(ConfigError, "got a parameter without", "ByRole"):
        Muon().make([nn.Parameter(torch.zeros(3))])


@pytest.mark.spec("T6")
def test_schedules_do_not_shadow_bases() -> None:
    assert config.from_plain(config.to_plain(fields.Cosine(3))) == fields.Cosine(3)
    assert config.from_plain(config.to_plain(optim.Cosine(0.1))) == optim.Cosine(0.1)


@pytest.mark.spec("T6")
def test_descriptions_can_be_stored() -> None:
    chosen = ByRole(Muon(0.01), table=AdamW(1e-3), density=Mirror(), kernel=Rescaled(Muon()))
    assert config.from_plain(config.to_plain(chosen)) == chosen


@pytest.mark.spec("T6")
def test_a_table_of_one_row_is_a_vector_that_is_not_summed() -> None:
    weights = counted(cases_models.COUNTED[0])
    assert weights.table(3, "d", 1.0, LIFT).role == LIFT
    assert weights.table(1, "d", 1.0, LIFT).role == VECTOR
    assert weights.table(1, "d", 1.0, HEAD).role == Role(Use.VECTOR, inputs="d")
    assert weights.table(1, "d", 1.0, SHIFT).role == SHIFT
    assert ByNetwork(cases_models.COUNTED[0]).table(1, "d", 1.0).role == VECTOR


@pytest.mark.spec("T6")
def test_foreign_layers_have_no_role_and_are_trained_as_gains() -> None:
    model = cases.MODELS["gpt2"].build()
    model.embed.norm = nn.Linear(8, 8)
    assert "embed.norm.weight" not in roles(model)
    assert parameter_info(model)["embed.norm.weight"].role is None
    parts = ByRole(AdamW(), gain=AdamW(0.5), kernel=Muon()).make(model).parts
    held = next(part.names for part in parts if part.chosen == AdamW(0.5))
    assert {"embed.norm.weight", "embed.norm.bias", f"{BLOCK}0.norm.scale.coefficients"} <= set(held)


@pytest.mark.spec("T6")
def test_a_field_without_a_role_is_refused_before_anything_changes(generator: torch.Generator) -> None:
    model = cases.MODELS["gpt2"].build()
    model.block.parts[1].inner.b2 = counted(cases_models.COUNTED[0], 2).field("zd")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for reads in (roles, parameter_info, ByRole().make, lambda model: initialise(model, Scaled(), generator)):
        with refused(ConfigError, "b2.coefficients without", "role=Role(Use."):
            reads(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.spec("T6")
def test_bad_roles_are_refused() -> None:
    with refused(ConfigError, "got 'kernal'", "kernel"):
        config.from_plain({"kind": "Role", "use": "kernal", "inputs": "c"})
    with refused(ConfigError, "got none", "inputs"):
        Role(Use.KERNEL)
    with refused(ConfigError, "'zcd' over 'c'", "zdc"):
        kernel(counted(cases_models.COUNTED[0]), "zcd", inputs="c")


@pytest.mark.spec("T6", "M10")
def test_a_field_alone_is_stored_with_its_role_and_may_have_none() -> None:
    axes, bases = {"d": cases.RING}, {"d": Fourier(3)}
    for role in (None, SHIFT, Role(Use.VECTOR, inputs="d")):
        again = config.from_plain(json.loads(json.dumps(config.to_plain(Expansion(axes, bases, role=role)))))
        assert again.role == role
    plain = config.to_plain(Expansion(axes, bases))
    del plain["role"]  # as 0.1 wrote it
    assert config.from_plain(plain).role is None


@pytest.mark.spec("T6")
def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="ParameterInfo"):
        assert optim.About is optim.ParameterInfo
    with pytest.warns(DeprecationWarning, match="parameter_info"):
        assert optim.about is optim.parameter_info
