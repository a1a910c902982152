"""Models that are traced at one size: programs of torch, and ONNX files made of them."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continua.convert.onnx.compared import Compared
from continua.convert.onnx.doors import SHAPES, Doors, Traced
from continua.errors import ConfigError
from continua.models import View
from continua.session import About
from continua.session.file import ExportedFile, Runtime
from continua.typing import Tensor

RESHAPES = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)

Answer = Callable[[tuple[Tensor, ...]], Any]


def program_of(view: View, doors: Doors) -> Any:
    """The program of a view, with open numbers of samples and tokens."""
    check = view.model.check
    view.model.check = False
    try:
        with torch.no_grad(), _quiet():
            shapes = (doors.dynamic,)
            made = torch.export.export(Traced(view, doors).eval(), doors.example(SHAPES[0]), dynamic_shapes=shapes)
            return without_places(made)
    except Exception as problem:  # whatever a tracer raises
        got = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        remedy = "Use a fixed number of steps and a plain kernel, or save it with model.save."
        raise ConfigError("this model cannot be traced", got=got, remedy=remedy) from problem
    finally:
        view.model.check = check


def without_places(program: Any) -> Any:
    """The same program without the lines of code behind its operations, which name folders of this machine."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def write_program(view: View, doors: Doors, path: Path) -> list[Compared]:
    """Write a ``.pt2``; compare it with the view when it is loaded again."""
    program = program_of(view, doors)
    with _quiet():
        torch.export.save(program, path)
        again = torch.export.load(path).module()
    return compare(view, doors, lambda given: again(*given).detach().numpy(), exact=True)


def write_traced(view: View, doors: Doors, path: Path, about: About, int8: bool) -> list[Compared]:
    """Write an ONNX file of one size; compare it with the view."""
    program = _laid_out(program_of(view, doors))
    names = list(doors.names)
    try:
        with _quiet():
            made = torch.onnx.export(
                program, input_names=names, output_names=[doors.answer], dynamo=True, verbose=False
            )
    except Exception as problem:  # whatever a converter raises
        remedy = "Export it as a program: FILE.pt2."
        said = [line for line in str(problem).splitlines() if line.startswith("<class")]
        got = said[-1] if said else type(problem).__name__
        raise ConfigError("ONNX has no operations for this model", got=got, remedy=remedy) from problem
    model = made.model_proto  # type: ignore[union-attr]
    if int8:
        model = _in_eight_bits(model, path)
    from onnx import helper

    helper.set_model_props(model, replace(about, kind=doors.kind, int8=int8).written())
    path.write_bytes(model.SerializeToString())
    runtime = Runtime(ExportedFile.read(path, 1), None)

    def answer(given: tuple[Tensor, ...]) -> Any:
        return runtime.run({name: one.numpy() for name, one in zip(names, given, strict=True)})[doors.answer]

    return compare(view, doors, answer, exact=not int8)


def _laid_out(program: Any) -> Any:
    """The same program with copies before reshapes: attention in ONNX lays its answer out in another order."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in RESHAPES:
            with graph.inserting_before(node):
                copied = graph.call_function(
                    torch.ops.aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
                )
            copied.meta = dict(node.args[0].meta)
            node.replace_input_with(node.args[0], copied)
    program.graph_module.recompile()
    return program


def compare(view: View, doors: Doors, answer: Answer, exact: bool) -> list[Compared]:
    """Answers of what was written and of the view, for batches of several shapes."""
    found = []
    for shape in SHAPES:
        given = doors.example(shape)
        with torch.no_grad():
            wanted = view(doors.batch(*given)).numpy()
        where = ", ".join(f"{name} {list(one.shape)}" for name, one in zip(doors.names, given, strict=True))
        difference = float(np.abs(answer(given) - wanted).max())
        own = Compared(where, difference, float(np.abs(wanted).max()))
        if exact:
            own.require_exact()
        found.append(own)
    return found


def _in_eight_bits(model: Any, path: Path) -> Any:
    """Matrices that are constants as whole numbers, products by dynamic quantisation."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name(f"{path.name}.whole")
    try:
        del model.graph.value_info[:]  # shapes of the tracer, which an inference of others contradicts
        onnx.save(model, whole)
        with _quiet():
            quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True)
        return onnx.load(path)
    finally:
        whole.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say of packages that are not there."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
