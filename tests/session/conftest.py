"""One small elastic model and its file, for all tests of this room."""

from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.tasks import Characters
from tests.runs import calibrated

ALPHABET = "abcdefghij \n"


@pytest.fixture(scope="package")
def elastic() -> Any:
    """Four heads, four steps, and a calibration along all axes that says something."""
    torch.manual_seed(0)
    plain = ct.zoo.gpt2(vocab=len(ALPHABET), d=16, heads=4, depth=4, context=24, m=40)
    return calibrated(ct.elastic(plain)).eval()


@pytest.fixture(scope="package")
def file(elastic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("exported") / "elastic.onnx"
    ct.export(elastic, path, tokens=Characters(ALPHABET))
    return path


@pytest.fixture(scope="package")
def session(file: Path) -> ct.Session:
    return ct.Session(file, threads=1)
