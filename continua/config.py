"""Objects to plain dicts and back, with a version: the only place where a string chooses a class.

A class registers itself with ``@register``. A registered object becomes ``{"kind": "Name", **arguments}``, where the
arguments are those of its constructor; frozen dataclasses are read off their fields, every other class remembers what
its constructor was called with. Nothing here imports any room of the house: a table says which module has which
kind, and that module is imported when a configuration first asks for one of them.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from torch.compiler import is_compiling

from continua.errors import ConfigError, nearest
from continua.settings import Door, checked
from continua.settings.checks import REGISTERED as _classes
from continua.settings.door import admission, shown

VERSION = 1
ALIASES = {"Flat": "Uniform", "Given": "States"}  # kinds that earlier versions wrote under another name
# where each kind is at home; a house test compares this with the classes that are decorated
MODULES = {
    "axes.axis": "Axes Circle Interval Points Product Times",
    "axes.discretisation": "Discretisation",
    "axes.rules": "ClenshawCurtis Counting GaussLegendre LeftEnd Midpoint Nested ProductRule Profile Trapezoid",
    "axes.sampled": "Lattice MonteCarlo Samples Sobol",
    "data.tokens": "BytePairs Characters",
    "fields.field": "Expansion",
    "fields.generated": "Generated",
    "fields.low_rank": "LowRank",
    "fields.neural": "Neural Separable",
    "fields.nodal": "Cubic Hold Linear Nodal Trigonometric",
    "fields.parametrisation": "ByBasis ByNetwork RefitRanks CorrectedNodes Corrections",
    "fields.role": "Role",
    "fields.spectral": "BSpline Cosine Fourier Legendre",
    "fields.splines": "NestedSpline",
    "flow.adjoints.backsolve": "Backsolve",
    "flow.adjoints.direct": "Direct",
    "flow.adjoints.recompute": "Checkpoint Lean Mixed Recompute",
    "flow.adjoints.reversible": "Reversible",
    "flow.controls.adaptive": "Adaptive",
    "flow.controls.control": "Fixed",
    "flow.solvers.reversible": "ReversibleHeun ReversibleSolver",
    "flow.solvers.runge_kutta": "Bosh3 Dopri5 Euler ExplicitMidpoint Heun RK4 Tsit5",
    "flow.solvers.sphere": "OnSphere",
    "flow.solvers.splitting": "LieTrotter Strang",
    "flow.trajectory": "SaveAt",
    "models.bank": "Bank",
    "models.cells": "Cells FromCells",
    "models.embed": "Channels Observations Queries States Tokens",
    "models.encoder_decoder": "EncoderDecoder",
    "models.factored": "Narrowed Widened",
    "models.frames": "Frames",
    "models.image_stem": "ImageStem",
    "models.init": "GPT2Init Scaled Xavier",
    "models.latent": "AskedReadout ChannelReadout Latent",
    "models.local_stem": "LocalStem",
    "models.patches": "Patches Pixels",
    "models.readout": "Averaged Readout",
    "models.sampling": "Greedy Sample",
    "models.tiling": "Tiling",
    "models.transformer": "Transformer",
    "models.two_towers": "TwoTowers",
    "operators.activation": "ELU GELU Identity QuickGELU ReLU SiLU Tanh",
    "operators.alibi": "ALiBi",
    "operators.attention.head_norm": "HeadNorm",
    "operators.attention.latent": "Gates Slices",
    "operators.attention.operator": "Attention",
    "operators.convolution": "Convolution",
    "operators.dropout": "Drop",
    "operators.experts": "Experts",
    "operators.kernels.features": "PositiveFeatures",
    "operators.kernels.kernel": "Additive Capped Softmax Uniform",
    "operators.kernels.local": "Comb Local",
    "operators.kernels.nystrom": "Nystrom",
    "operators.kernels.sampled": "FewSources",
    "operators.kernels.stationary": "Gaussian Stationary",
    "operators.mask": "Both ByDepth Causal Neighbours Strided Window",
    "operators.norm": "Constraint LayerNorm LayerScale Project RMSNorm SphereProjection",
    "operators.operator": "Beside Chain FromDepth Parts PreNorm Skip",
    "operators.pointwise": "Apply Integral Pointwise",
    "operators.position": "Learned Position PositionByDepth RelativeBias Rotary Sinusoidal WaveBias",
    "operators.shared_expert": "SharedExpert",
    "operators.spectral": "SpectralConvolution",
    "operators.symbols": "SymbolProducts",
    "operators.stretch": "DynamicStretch LinearStretch Llama3Stretch LongStretch YarnStretch",
    "operators.transport": "SymbolTransport",
    "optim.bounded": "Rescaled SpectrallyNormalised",
    "optim.kfac": "KFAC",
    "optim.mirror": "DualAveraging Mirror",
    "optim.muon": "Muon",
    "optim.optimiser": "AdamW ByRole",
    "optim.schedule": "Constant CosineDecay InverseSqrt",
    "optim.shampoo": "SOAP Shampoo",
    "optim.stiefel": "RiemannianAdam",
    "tasks.series": "Scale",
    "training.discretisations": "Always",
    "training.afterwards": "Afterwards",
    "training.elastic": "Elastic",
    "training.growth": "Growth Stage",
    "training.imitation": "AnswerImitation EmbeddingImitation StateImitation",
    "training.modes": "Modes",
    "training.prolongation": "AsMade Copied",
    "training.penalty": "HeadEntropy JacobianNorm KineticEnergy Sampled Smoothness SpectralNorm SquaredWeights",
    "training.settings": "Training",
    "training.size_laws": "ByGap ByShare Diagonal",
    "training.sizes": "SmallerSizes",
}
KINDS = {kind: f"continua.{module}" for module, kinds in MODULES.items() for kind in kinds.split()}
C = TypeVar("C", bound=type)


def register(cls: C) -> C:
    """Make ``cls`` storable, and its constructor check what it is given (see ``settings``).

    Its constructor arguments must be storable too.
    """
    known = _classes.get(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ConfigError(f"two classes are called {cls.__name__}", remedy="Rename one of them.")
    if dataclasses.is_dataclass(cls):
        checked(cls)
    else:
        _remember_arguments(cls)
    _classes[cls.__name__] = cls
    return cls


def _remember_arguments(cls: type) -> None:
    init = cls.__init__  # type: ignore[misc]
    door = Door(cls.__name__, init, bound=True)
    admit = admission(door)

    @functools.wraps(init)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_compiling():
            args, kwargs = admit(args, kwargs)
        init(self, *args, **kwargs)
        placed = dict(zip(door.names, args, strict=False))
        given = {name: value for name, value in kwargs.items() if name in door.parameters}
        # written past nn.Module.__setattr__, so that a remembered sub-module is not registered twice
        object.__setattr__(self, "_arguments", {**door.defaults, **placed, **given})

    remembering.door = door  # type: ignore[attr-defined]
    cls.__init__ = remembering  # type: ignore[misc]


def _settings(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """The named parameters. A module without a constructor has torch's (*args, **kwargs), and no settings."""
    return {k: p for k, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def arguments(obj: Any) -> dict[str, Any]:
    """Return the constructor arguments of a registered object."""
    if dataclasses.is_dataclass(obj):
        return {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}
    return dict(obj._arguments)


def to_plain(obj: Any) -> Any:
    """Return ``obj`` as numbers, strings, lists and dicts; a member of an enumeration is its value."""
    if isinstance(obj, Enum):
        return to_plain(obj.value)
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, list | tuple):
        return [to_plain(item) for item in obj]
    if isinstance(obj, Mapping):
        return {str(key): to_plain(value) for key, value in obj.items()}
    name = type(obj).__name__
    if _classes.get(name) is not type(obj):
        raise ConfigError("only registered objects can be stored", got=name, remedy="Decorate the class: @register.")
    return {"kind": name, **{key: to_plain(value) for key, value in arguments(obj).items()}}


def from_plain(plain: Any) -> Any:
    """Build the object that ``to_plain`` described. Lists come back as tuples."""
    if isinstance(plain, list | tuple):
        return tuple(from_plain(item) for item in plain)
    if not isinstance(plain, Mapping):
        return plain
    values = {key: from_plain(value) for key, value in plain.items() if key != "kind"}
    if "kind" not in plain:
        return values
    return build(plain["kind"], values)


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    """Reading a signature takes longer than making most of the objects."""
    return inspect.signature(cls)


def class_of(name: str) -> type:
    """The class of a kind, by its present name or an earlier one, imported from its home if it has not been yet."""
    if not isinstance(name, str):
        raise ConfigError("a kind is a name", got=shown(name), remedy="Write for example {'kind': 'Circle'}.")
    kind = ALIASES.get(name, name)
    if kind not in _classes and kind in KINDS:
        importlib.import_module(KINDS[kind])
    if kind not in _classes:
        remedy = nearest(name, [*KINDS, *_classes])
        raise ConfigError("unknown kind in the configuration", got=repr(name), remedy=remedy)
    return _classes[kind]


def build(name: str, values: Mapping[str, Any]) -> Any:
    """Call the registered class ``name``; unknown names and keys are answered with the nearest known one."""
    cls = class_of(name)
    parameters = _settings(_signature(cls))
    for key in values:
        if key not in parameters:
            raise ConfigError(f"{name} has no setting of that name", got=repr(key), remedy=nearest(key, [*parameters]))
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise ConfigError(f"{name} needs {key!r}", got="no such setting", remedy="Add it to the configuration.")
    return cls(**{key: _member(parameters[key], value) for key, value in values.items()})


def _member(parameter: inspect.Parameter, value: Any) -> Any:
    """The member of an enumeration that a setting names; other settings are left as they are."""
    kind = parameter.annotation
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return value
    known = [member.value for member in kind]
    if value not in known:
        remedy = nearest(str(value), [str(one) for one in known])
        raise ConfigError(f"{parameter.name!r} has no such value", got=repr(value), remedy=remedy)
    return kind(value)
