"""Instruments that look at a model: attention maps, how its tokens move, spectra, classes along depth."""

from continua.lab.probes.attention import AttentionMap, attention_maps, attribution, entropy, mean_entropy, rollout
from continua.lab.probes.controls import controlled
from continua.lab.probes.during_training import ProbeEvery
from continua.lab.probes.dynamics import Dynamics, Recording, Sinks, dynamics, look
from continua.lab.probes.history import History, Snapshot
from continua.lab.probes.iterate import Iteration, Substeps, iterate, substeps
from continua.lab.probes.ladder import Ladder, ladder
from continua.lab.probes.overclustering import Overclustered, overclustered
from continua.lab.probes.patterns import PATTERNS, Head, head_table, pattern_scores
from continua.lab.probes.separation import Level, Separation, first_token, mean_token, separation
from continua.lab.probes.spectra import HeadSpectra, spectra

__all__ = [
    "PATTERNS",
    "AttentionMap",
    "Dynamics",
    "Head",
    "HeadSpectra",
    "Iteration",
    "Ladder",
    "Separation",
    "Sinks",
    "Substeps",
    "attention_maps",
    "attribution",
    "controlled",
    "dynamics",
    "entropy",
    "head_table",
    "iterate",
    "ladder",
    "look",
    "mean_entropy",
    "overclustered",
    "pattern_scores",
    "rollout",
    "separation",
    "History",
    "Level",
    "Overclustered",
    "ProbeEvery",
    "Recording",
    "Snapshot",
    "first_token",
    "mean_token",
    "spectra",
    "substeps",
]
