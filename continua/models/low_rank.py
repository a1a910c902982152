"""Low-rank adaptation: a few functions beside kernels learn, merge into them, and are kept as a file of their own."""

import json
import stat
import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from continua.config import VERSION, class_of, from_plain, to_plain
from continua.errors import CheckpointError, ConfigError
from continua.fields import Adapted, ByBasis, LowRank
from continua.files import aside, fault_of, flush
from continua.models.store import DAMAGED, fingerprint, refuse_pickle, refuse_ruined
from continua.operators import Attention, Operator
from continua.settings import Positive, Seed, Size, checked
from continua.typing import Tensor

FORMAT = "continua lora"
SIDES = (".out.coefficients", ".inputs.coefficients")


@checked
def with_lora(
    model: Any,
    rank: Size = 8,
    *,
    scale: Positive = 1.0,
    where: tuple[Any, ...] = (Attention,),
    also: tuple[str, ...] = (),
    seed: Seed = 0,
) -> Any:
    """Return the same model with ``scale`` Σ_r A_r(out) B_r(in) beside every kernel of its layers, zero so far.

    Nothing else learns, but what ``also`` names by the beginning of its parameters' names (a new head: "readout").
    ``where`` are the classes of operators whose kernels are added to; (Attention, Pointwise) are all of a layer, at
    twice the numbers and some more time. The weights that stay are those of ``model`` itself, not
    copies; on other grids the sum is read as its kernels are. ``merged`` makes an ordinary model again.

    >>> from continua.models import zoo
    >>> model = with_lora(zoo.gpt2(vocab=16, d=32, heads=2, depth=2, context=8), rank=2)
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    1024
    """
    if lora_of(model) is not None:
        remedy = "Merge it first: with_lora(merged(model), rank)."
        raise ConfigError("this model has a low-rank addition", got=lora_of(model), remedy=remedy)
    for kind in where:
        if not (isinstance(kind, type) and issubclass(kind, Operator)):
            raise ConfigError(
                "where names classes of operators", got=kind, remedy="Write where=(Attention, Pointwise)."
            )
    asked = LowRank(rank, scale)
    made = _rebuilt(model, _with(to_plain(model), to_plain(asked), {kind.__name__ for kind in where}))
    fields = _adapted(made)
    if not fields:
        got = f"{type(model).__name__} with {', '.join(kind.__name__ for kind in where)}"
        remedy = "Name operators that it has, whose weights have bases (networks have none): where=(Attention,)."
        raise ConfigError("nothing in this model has a kernel to add to", got=got, remedy=remedy)
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    for field in fields.values():
        for side in (field.out, field.inputs):
            side.to_empty(device="cpu")
        field.draw(generator)
        for side in (field.out, field.inputs):
            side.to(device=like.device, dtype=field.coefficients.dtype)
    return learn_only(made, also)


def learn_only(model: Any, also: Sequence[str] = ()) -> Any:
    """Freeze all but the low-rank additions and the parameters whose names begin with one of ``also``; return it."""
    own = _sides(model)
    for prefix in also:
        found = {name for name, _ in model.named_parameters() if name == prefix or name.startswith(f"{prefix}.")}
        if not found:
            got = repr(prefix)
            raise ConfigError("no parameter has a name that begins so", got=got, remedy='Write for example "readout".')
        own |= found
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in own)
    return model


def lora_of(model: Any) -> LowRank | None:
    """What was added to a model by ``with_lora``; None where nothing was."""
    return next((field.low for field in _adapted(model).values()), None)


def merged(model: Any) -> Any:
    """Return an ordinary model with the low-rank additions in its kernels; one without any is returned itself.

    The same numbers on every grid: what is added are coefficients to coefficients.
    """
    fields = _adapted(model)
    if not fields:
        return model
    with torch.no_grad():
        sums = {f"{name}.coefficients": field.stored().clone() for name, field in fields.items()}
    return _rebuilt(model, _with(to_plain(model), None, _owners(model)), sums)


def save_lora(model: Any, file: str | Path) -> Path:
    """Write what learned in a model of ``with_lora`` into a .safetensors of its own: whole, or not at all.

    That are the low-rank additions, and the other parameters that learn (a new head).
    """
    low = lora_of(model)
    if low is None:
        remedy = "Make it by with_lora(model, rank), or keep all of it: model.save(folder)."
        raise CheckpointError("this model has no low-rank addition", got=type(model).__name__, remedy=remedy)
    file = Path(file)
    if file.suffix != ".safetensors":
        remedy = f"Write {file.stem or 'lora'}.safetensors."
        raise CheckpointError("a .safetensors is written", got=repr(file.name), remedy=remedy)
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad} | _sides(model)
    own = {name: tensor for name, tensor in state.items() if name in learned}
    refuse_ruined(own)
    stays = {name: tensor for name, tensor in state.items() if name not in own}
    about = {
        "format": FORMAT,
        "version": str(VERSION),
        "low_rank": json.dumps(to_plain(low)),
        "where": json.dumps(_owners(model)),
        "content": fingerprint(own),
        "base": fingerprint(stays),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with aside(file) as written:
        written.touch()
        mode = stat.S_IMODE(written.stat().st_mode)
        try:
            save_file(own, written, metadata=about)
        except SafetensorError as problem:  # its own name for a disk that is full or cannot be written
            raise OSError(str(problem)) from problem
        written.chmod(mode)  # safetensors writes files for their owner alone
        flush(written)
        written.replace(file)
    return file


def load_lora(model: Any, file: str | Path) -> Any:
    """Return ``model`` with the additions of a file of ``save_lora``, ready to learn on; the base stays as it is.

    The model has to be the one that they were trained beside: kernels of other names or shapes are refused, and
    other numbers in them are warned of.
    """
    file = Path(file)
    about, tensors = _read(file)
    low = from_plain(json.loads(about["low_rank"]))
    where = tuple(class_of(kind) for kind in json.loads(about["where"]))
    made = with_lora(merged(model), low.rank, scale=low.scale, where=where)
    wanted = made.state_dict()
    sides = _sides(made)
    for name in dict.fromkeys([*tensors, *sorted(sides)]):
        got = list(tensors[name].shape) if name in tensors else "none"
        needed = list(wanted[name].shape) if name in wanted else "none"
        if got != needed:
            remedy = "Load it onto the model it was trained beside; for a new head make that first (with_classes)."
            raise CheckpointError(
                f"{file.name} does not fit this model", got=f"{name}: {got}, not {needed}", remedy=remedy
            )
    stays = {name: tensor for name, tensor in wanted.items() if name not in tensors}
    if fingerprint(stays) != about["base"]:
        warnings.warn(f"{file.name} was trained beside other weights than this model has.", stacklevel=2)
    made.load_state_dict(tensors, strict=False)
    return learn_only(made, sorted(set(tensors) - sides))


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What a file says of itself, and its tensors; what is damaged or something else is refused."""
    refuse_pickle(file)
    fault = fault_of(file)
    if fault is not None:
        raise CheckpointError("there is no such file", got=f"{file} {fault}", remedy="Give a file of save_lora.")
    try:
        with safe_open(file, "pt") as opened:
            about = dict(opened.metadata() or {})
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as problem:
        raise CheckpointError(f"{file} cannot be read", got=str(problem), remedy=DAMAGED) from problem
    if about.get("format") != FORMAT or about.get("version") != str(VERSION):
        got = f"{about.get('format')!r}, version {about.get('version')!r}"
        remedy = "Give a file of save_lora of this version."
        raise CheckpointError(f"{file} holds no low-rank addition", got=got, remedy=remedy)
    if fingerprint(tensors) != about.get("content"):
        raise CheckpointError(f"{file} is damaged", got="other numbers than were saved", remedy=DAMAGED)
    return about, tensors


def _adapted(model: nn.Module) -> dict[str, Adapted]:
    """The kernels with an addition, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Adapted)}


def _owners(model: nn.Module) -> list[str]:
    """The kinds of operators whose kernels have an addition."""
    found = {type(m).__name__ for m in model.modules() for own in m.children() if isinstance(own, Adapted)}
    return sorted(found)


def _sides(model: nn.Module) -> set[str]:
    """The names of the parameters of the additions."""
    return {f"{name}{side}" for name in _adapted(model) for side in SIDES}


def _rebuilt(model: nn.Module, plain: Any, other: Mapping[str, Tensor] | None = None) -> Any:
    """The model of another description with the same tensors, and ``other`` ones; those it lacks have no numbers."""
    with torch.device("meta"):
        made = from_plain(plain)
    wanted = made.state_dict()
    held = {**model.state_dict(), **(other or {})}
    made.load_state_dict({name: held[name] for name in wanted if name in held}, strict=False, assign=True)
    return made.train(model.training)


def _with(plain: Any, low: Any, kinds: Container[str], inside: bool = False) -> Any:
    """A description in which the kernels of operators of these kinds, in the layers of a model, have an addition."""
    if isinstance(plain, list):
        return [_with(value, low, kinds, inside) for value in plain]
    if not isinstance(plain, dict):
        return plain
    made = {key: _with(value, low, kinds, inside or key == "block") for key, value in plain.items()}
    weights = made.get("weights")
    if inside and made.get("kind") in kinds and isinstance(weights, dict) and weights.get("kind") == ByBasis.__name__:
        made["weights"] = {**weights, "low_rank": low}
    return made
