"""Writes what the studio ships: the operator of Burgers' equation as ONNX, and how it reads scattered points.

    continua fit burgers --folder runs/burgers
    python tools/studio_data.py runs/burgers

Weights are stored with half the digits (float16) and read as float32: the file has half the bytes, and the error that
this adds is printed beside that of the model.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim

from continua.convert.onnx.traced import _laid_out, _quiet, without_places
from continua.data.burgers import burgers_pairs
from continua.models import Batch
from continua.models.reconstruct import NOISE
from continua.tasks.functions import relative
from continua.training import Run

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "continua" / "studio" / "data"
LARGE = 1024  # numbers from which on a weight is stored in half
SEED = 977  # of functions that no training saw


class Asked(nn.Module):
    """The operator as a function of values on its own grid and of the points that are asked for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, values: Tensor, asked: Tensor) -> Tensor:
        answer: Tensor = self.inner(Batch(values, asked=asked))
        return answer


def traced(model: Any) -> onnx.ModelProto:
    model.check = False
    nodes = model.embed.rule.n
    example = (torch.randn(2, nodes, 1), torch.rand(37, 1))
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    with torch.no_grad(), _quiet():
        program = torch.export.export(Asked(model).eval(), example, dynamic_shapes=shapes)
        names = ["values", "asked"]
        made = torch.onnx.export(
            _laid_out(without_places(program)), input_names=names, output_names=["answer"], dynamo=True, verbose=False
        )
    return made.model_proto  # type: ignore[union-attr]


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Large weights as float16, with a cast behind each."""
    graph = model.graph
    casts = []
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < LARGE:
            continue
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), f"{tensor.name}_half"))
        casts.append(helper.make_node("Cast", [f"{tensor.name}_half"], [tensor.name], to=onnx.TensorProto.FLOAT))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *rest])
    del graph.value_info[:]
    return model


def main() -> int:
    run = Run.open(sys.argv[1])
    model = run.model().eval().requires_grad_(False)
    DATA.mkdir(exist_ok=True)
    path = DATA / "burgers.onnx"
    path.write_bytes(halved(traced(model)).SerializeToString())
    viscosity = float(run.about["changes"].get("viscosity", 0.01))
    pairs = burgers_pairs(40, 1024, viscosity=viscosity, seed=SEED)
    nodes = model.embed.rule.n
    seen = pairs.inputs[:, :: 1024 // nodes].float()
    asked = torch.arange(1024)[:, None].float() / 1024
    session = onnxruntime.InferenceSession(str(path))
    with torch.no_grad():
        ours = model(Batch(seen, asked=asked))
    found = torch.from_numpy(session.run(None, {"values": seen.numpy(), "asked": asked.numpy()})[0])
    wanted = pairs.outputs.float()
    errors = {
        name: float(relative(answer, wanted, torch.ones(1024)).mean())
        for name, answer in (("torch", ours), ("file", found))
    }
    about = {
        "nodes": nodes,
        "viscosity": viscosity,
        "until": 1.0,
        "spectrum": [float(f"{x:.6e}") for x in model.embed.spectrum.double().tolist()],
        "noise": NOISE,
        "error": round(errors["file"], 5),
        "example": [round(x, 5) for x in pairs.inputs[3, ::16, 0].tolist()],
    }
    (DATA / "burgers.json").write_text(json.dumps(about, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.stat().st_size / 1e6:.2f} MB; relative L2 error on 40 new functions: {errors}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
