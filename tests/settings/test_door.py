"""Everything that can be set is held against its annotation before anything is made of it."""

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest
import torch

import continua
from continua import config
from continua.axes import Axes, Circle, Interval, Midpoint, Rule, Times, at
from continua.errors import ConfigError, ContinuaError, GridError
from continua.flow import RK4, Adaptive, Fixed
from continua.models.sampling import Sample
from continua.operators import LayerNorm
from continua.operators.norm import SphereProjection
from continua.optim import AdamW, ByRole, Muon
from continua.settings import Count, Positive, Range, Reach, Share, checked, door_of
from continua.settings.checks import Anything
from continua.training import Training
from tests.refusals import refused


class Colour(Enum):
    RED = "red"


class Walks(Protocol):
    def walk(self) -> int: ...


class Dog:
    def walk(self) -> int:
        return 4


@checked
@dataclass(frozen=True)
class Everything:
    count: Count = 1
    rate: Positive = 0.5
    share: Share = 0.5
    flag: bool = False
    text: str = "a"
    maybe: int | None = None
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[int, ...] = ()
    word: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    rule: Rule | int = 3
    walker: Walks | None = None
    table: Mapping[str, int] = dataclasses.field(default_factory=dict)
    call: Callable[[int], int] = abs
    tensor: torch.Tensor | None = None
    far: Annotated[float, Range(above=0, infinite=True)] = 1.0
    free: Any = None


RIGHT = [
    ("count", np.int64(3), 3),
    ("count", np.uint8(3), 3),
    ("count", np.array(3), 3),
    ("rate", 1, 1),
    ("rate", np.float32(0.5), 0.5),
    ("rate", np.int32(2), 2),
    ("flag", np.bool_(True), True),
    ("maybe", None, None),
    ("pair", [1, 2], (1, 2)),
    ("pair", (np.int64(1), np.float64(2)), (1, 2.0)),
    ("many", [1, 2, 3], (1, 2, 3)),
    ("many", np.arange(3), (0, 1, 2)),
    ("word", "b", "b"),
    ("colour", "red", Colour.RED),
    ("colour", Colour.RED, Colour.RED),
    ("rule", Midpoint(4), Midpoint(4)),
    ("rule", np.int64(4), 4),
    ("table", {"a": 1}, {"a": 1}),
    ("call", len, len),
    ("far", math.inf, math.inf),
    ("free", "x", "x"),
    ("text", np.str_("b"), "b"),
]

WRONG = [
    ("count", 0, "a whole number ≥ 1"),
    ("count", 1.5, "whole"),
    ("count", True, "whole"),
    ("count", "3", "whole"),
    ("count", math.nan, "whole"),
    ("count", None, "whole"),
    ("count", np.float64(2), "whole"),
    ("count", 2j, "whole"),
    ("rate", 0.0, "a number > 0"),
    ("rate", math.inf, "> 0"),
    ("rate", math.nan, "> 0"),
    ("rate", True, "number"),
    ("rate", "1e-3", "number"),
    ("share", 1.5, "≥ 0 and ≤ 1"),
    ("flag", 1, "True or False"),
    ("flag", "false", "True or False"),
    ("text", 3, "text"),
    ("text", b"x", "text"),
    ("maybe", "x", "a whole number or None"),
    ("pair", (1,), "a tuple of 2"),
    ("pair", "ab", "a tuple"),
    ("many", 3, "a tuple"),
    ("many", ("x",), "each a whole number"),
    ("word", "c", "'a', 'b'"),
    ("colour", "blue", "'red'"),
    ("rule", "Midpoint", "a Rule"),
    ("rule", Midpoint, "a Rule"),
    ("walker", 3, "a Walks"),
    ("walker", Dog, "a Walks"),
    ("table", [1], "a mapping"),
    ("table", {"a": "x"}, "a mapping"),
    ("call", 3, "a function"),
    ("tensor", [1.0], "a Tensor"),
    ("far", -math.inf, "> 0"),
]


@pytest.mark.finding("D9")
@pytest.mark.parametrize(("name", "value", "kept"), RIGHT)
def test_what_fits_is_taken_and_numbers_of_numpy_are_numbers(name: str, value: Any, kept: Any) -> None:
    made = getattr(Everything(**{name: value}), name)
    assert made == kept
    assert type(made) is type(kept)


@pytest.mark.finding("D1")
@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_what_does_not_fit_is_refused_with_a_remedy(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Everything(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"Everything: {name} takes")
    assert words in message
    assert message.endswith(".")
    assert len(message) < 300


@pytest.mark.finding("D1")
def test_numbers_of_thousands_of_digits_do_not_stop_the_sentence() -> None:
    with refused(ConfigError, "got 1000", "Use count ≥ 1"):
        Everything(count=10**400)
    with refused(ConfigError, "got int", "Use count ≥ 1"):
        Everything(count=-(10**5000))


@pytest.mark.finding("D1")
def test_unknown_missing_and_surplus_settings_are_refused() -> None:
    with refused(ConfigError, "got 'raet'", "Did you mean 'rate'?"):
        Everything(raet=1.0)  # type: ignore[call-arg]
    with refused(ConfigError, "no such setting", "n=…, a whole number ≥ 1"):
        Midpoint()  # type: ignore[call-arg]
    with refused(ConfigError, "got 3 without a name", "Name them"):
        Midpoint(1, 2, 3)  # type: ignore[call-arg]
    with refused(ConfigError, "got it twice", "Leave one out"):
        Midpoint(1, n=2)  # type: ignore[misc]
    with refused(ConfigError, "got 'x'", "Leave it out"):
        RK4(x=1)  # type: ignore[call-arg]


@pytest.mark.finding("D1")
@pytest.mark.parametrize(
    "made",
    [
        lambda: Interval("a", 2),
        lambda: Interval(0.0, math.inf),
        lambda: Circle(length=None),
        lambda: Times(start="x"),
        lambda: Axes(t=1, d=2, h=3, e=4, m=5, z=6),
        lambda: Fixed("six"),
        lambda: Fixed(6, solver="RK4"),
        lambda: Adaptive(rtol="1e-3"),
        lambda: Sample(temperature="hot"),
        lambda: AdamW(lr="fast"),
        lambda: AdamW(betas=(0.9,)),
        lambda: ByRole(rest=3),
        lambda: LayerNorm(weights=3),
        lambda: Training(steps="many"),
        lambda: Training(at="d=3"),
        lambda: Training(adjoint="Recompute"),
        lambda: at(d="wide"),
        lambda: at(d=None, q=3),
        lambda: at(z="six"),
        lambda: at(z=[1, 2]),
        lambda: at(h={"a": 1}),
        lambda: at(d=Midpoint),
        lambda: config.build("Interval", {"start": "a"}),
        lambda: config.from_plain({"kind": "Circle", "length": [1]}),
        lambda: config.from_plain({"kind": "Training", "patience": {"a": 1}}),
        lambda: config.from_plain({"kind": ["Circle"]}),
        lambda: config.from_plain({"kind": "Circle", "length": {"kind": None}}),
        lambda: config.from_plain({"kind": "Fixed", "steps": 3, "solver": {"kind": "Circle"}}),
    ],
)
def test_constructors_answer_in_sentences(made: Callable[[], Any]) -> None:
    with pytest.raises(ContinuaError):
        made()


@pytest.mark.finding("S7")
@pytest.mark.parametrize(
    ("name", "value"),
    [("clip", -1.0), ("clip", 0.0), ("clip", math.nan), ("patience", 0), ("patience", -1), ("steps", 0),
     ("accumulate", 0), ("save_every", 0), ("evaluate_every", -3), ("seed", -1), ("seed", 1.5)],
)  # fmt: skip
def test_training_refuses_numbers_that_train_nothing(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Training(**{name: value})  # type: ignore[arg-type]


@pytest.mark.finding("S7")
@pytest.mark.parametrize("made", [lambda: AdamW(lr=-1e-3), lambda: Muon(lr=math.nan)])
def test_optimisers_and_adjoints_refuse_to_ascend(made: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="Use "):
        made()


@pytest.mark.finding("D9")
def test_sizes_of_numpy_make_the_same_views() -> None:
    assert at(d=np.int64(64), h=np.int32(2), z=np.int64(3)) == at(d=64, h=2, z=3)
    assert type(at(d=np.int64(64)).d) is int
    with refused(GridError, "got 0", "n ≥ 1"):
        at(d=np.int64(0))


def test_a_module_remembers_what_it_was_given_and_the_rest() -> None:
    made = SphereProjection(np.float32(2.0))
    assert config.arguments(made) == {"radius": 2.0, "eps": 0.0}
    assert type(config.arguments(made)["radius"]) is float


FREE = {("Discretisation", "z"), ("Transformer", "readout")}  # settings that take anything, or say what by ``Takes``


def test_every_setting_of_every_kind_has_a_check_that_takes_its_default() -> None:
    for module in pkgutil.walk_packages(continua.__path__, "continua."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for kind in config.KINDS:
        door = door_of(config.class_of(kind))
        for name, check in door.checks.items():
            assert (kind, name) in FREE or not isinstance(check, Anything), f"{kind} takes anything as {name}"
            default = door.parameters[name].default
            if default is not door.parameters[name].empty:
                assert check.take(default) == default, (kind, name)


def test_nothing_is_checked_inside_a_graph() -> None:
    """A constructor that is traced is the plain one: a symbol is no number."""

    def steps(x: torch.Tensor) -> torch.Tensor:
        return x * Fixed(int(x.shape[0])).steps

    made = torch.compile(steps, backend="eager", fullgraph=True, dynamic=True)
    assert torch.equal(made(torch.ones(3)), torch.full((3,), 3.0))


def test_checked_functions_refuse_too() -> None:
    @checked
    def area(width: Positive, height: Positive = 1.0) -> float:
        return width * height

    assert area(2.0, np.float64(3.0)) == 6.0
    with refused(ConfigError, "got -1", "Use width > 0"):
        area(-1)
    with refused(ConfigError, "no such setting", "Give width=…"):
        area()  # type: ignore[call-arg]


@pytest.mark.spec("B17")
def test_whole_numbers_that_torch_does_not_hold_become_floats() -> None:
    assert Everything(rate=3).rate == 3
    assert type(Everything(rate=3).rate) is int
    assert type(Everything(rate=10**40).rate) is float
    assert Everything(rate=2**63).rate == 2.0**63
    with refused(ConfigError, "a number that a float can hold", "rate > 0"):
        Everything(rate=10**400)

    @checked
    def reach(far: Reach) -> float:
        return far

    assert reach(math.inf) == math.inf
    with refused(ConfigError, "a number that a float can hold", "far > 0"):
        reach(10**400)
