"""Serving: an OpenAI-compatible server with continuous batching, whose size follows load and deadlines.

``continua serve RUN`` starts it. The web server needs the extra ``serve``; the engine needs nothing but the model.
"""

from continua.serve.choice import Demand, Load, always_native, by_slack
from continua.serve.decoder import Decoder
from continua.serve.engine import Engine, Full, Limits
from continua.serve.front import Front, SizeCost, front_of
from continua.serve.jobs import Ask, Job, Said
from continua.serve.metrics import Metrics

__all__ = [
    "Ask",
    "Decoder",
    "Demand",
    "Engine",
    "Front",
    "Full",
    "Job",
    "Limits",
    "Load",
    "Metrics",
    "Said",
    "SizeCost",
    "always_native",
    "by_slack",
    "front_of",
]
