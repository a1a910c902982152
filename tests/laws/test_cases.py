"""The lists of cases are complete: a class that is registered but in no list has no laws."""

import inspect
import json

import pytest

from continua import axes, config, fields, flow, models, operators
from tests import cases, cases_models
from tests.laws.test_store import FROZEN


def kinds(plain: object) -> set[str]:
    """Every class named anywhere in a stored description."""
    if isinstance(plain, dict):
        own = {plain["kind"]} if "kind" in plain else set()
        return own.union(*map(kinds, plain.values()))
    return set().union(*map(kinds, plain)) if isinstance(plain, list) else set()


@pytest.mark.spec("M5", "M7")
def test_every_registered_class_has_a_case() -> None:
    assert all((axes, fields, flow, models, operators))  # importing them is what registers their classes
    built = [*(cases.made(name)[0] for name in cases.MODELS), *(case.build() for case in cases.OTHER_MODELS.values())]
    loose = [cases.field(name) for name in cases.FIELDS]
    named = set().union(*(kinds(json.loads(json.dumps(config.to_plain(one)))) for one in [*built, *FROZEN, *loose]))
    named |= {rule.__name__ for rule in cases.OTHER_RULES}
    rooms = {"axes", "fields", "flow", "models", "operators"}
    known = {name for name, cls in config._classes.items() if cls.__module__.split(".")[1] in rooms}
    assert known - named == set(), "add them to tests/cases.py"


@pytest.mark.spec("M4")
def test_every_rule_is_in_a_list() -> None:
    lists = [*cases.RULES, *cases.RANDOM_RULES, *cases.OTHER_RULES]
    public = [one for name in axes.__all__ if inspect.isclass(one := getattr(axes, name))]
    rules = [one for one in public if hasattr(one, "reference") and hasattr(one, "order") and one is not axes.Rule]
    assert set(rules) == set(lists)


@pytest.mark.spec("D2")
def test_every_solver_is_in_a_list() -> None:
    public = [one for name in flow.__all__ if inspect.isclass(one := getattr(flow, name))]
    solvers = {one for one in public if hasattr(one, "step") and one is not flow.Solver}
    assert solvers == {type(one) for one in cases.ALL_SOLVERS}


@pytest.mark.spec("D1", "D4")
def test_every_adjoint_and_control_is_in_a_list() -> None:
    public = [one for name in flow.__all__ if inspect.isclass(one := getattr(flow, name))]
    adjoints = {one for one in public if hasattr(one, "run") and one is not flow.Adjoint}
    assert adjoints == {type(one) for one in [*cases.EXACT_ADJOINTS, *cases.INEXACT_ADJOINTS, flow.Direct()]}
    controls = {one for one in public if hasattr(one, "find") and one is not flow.Control}
    assert controls == {flow.Fixed, *(type(one) for one in cases.ADAPTIVE)}


@pytest.mark.spec("A2", "A3", "M6")
def test_every_mask_position_and_norm_is_in_a_list() -> None:
    public = [one for name in operators.__all__ if inspect.isclass(one := getattr(operators, name))]
    masks = {one for one in public if issubclass(one, operators.Mask) and one is not operators.Mask}
    assert masks == {type(one) for one in [*cases.MASKS, cases.BY_DEPTH]}
    w = fields.counted(cases_models.COUNTED[0], cases.STEPS)
    positions = {one for one in public if issubclass(one, operators.Position)}
    on_ring = cases.MODELS["functions on a circle"].build().block.parts[1].inner.axes
    field = cases.with_bases()(on_ring, cases.made("functions on a circle")[0].native)
    made = [make(w) for make in cases.POSITIONS.values()]
    made += [*(make(field) for make in cases.FIELD_POSITIONS.values()), cases.POSITION_BY_DEPTH]
    assert positions == {type(one) for one in made}
    encodings = {one for one in public if issubclass(one, operators.Encoding) and one is not operators.Encoding}
    assert encodings == {type(make(w)) for make in cases.ENCODINGS.values()}
