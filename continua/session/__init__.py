"""Models from one ONNX file, with numpy and onnxruntime alone: nothing here imports torch."""

from continua.session.about import About, Size
from continua.session.sampling import Choice
from continua.session.session import Session

__all__ = ["About", "Choice", "Session", "Size"]
