"""Training: objectives, penalties, the loop, and runs that cannot be lost."""

from continua.training.afterwards import Afterwards
from continua.training.discretisations import Always, Discretisations
from continua.training.elastic import Elastic
from continua.training.fit import Fitted, fit, train
from continua.training.growth import Growth, Stage
from continua.training.hamiltonian import HamiltonianPath, hamiltonian
from continua.training.imitation import AnswerImitation, EmbeddingImitation, Imitation, StateImitation, Study
from continua.training.load import load
from continua.training.modes import Modes
from continua.training.objective import Objective, Whole
from continua.training.penalty import (
    HeadEntropy,
    JacobianNorm,
    KineticEnergy,
    Penalties,
    Penalty,
    Sampled,
    Smoothness,
    SpectralNorm,
    SquaredWeights,
)
from continua.training.progress import Bar, Progress
from continua.training.prolongation import AsMade, Copied, Prolongation
from continua.training.run import Run
from continua.training.settings import Training
from continua.training.size_laws import ByGap, ByShare, Diagonal, LearningPlan
from continua.training.sizes import Lesson, LessonPlan, SizeLaw, SmallerSizes

__all__ = [
    "Afterwards",
    "Always",
    "AnswerImitation",
    "AsMade",
    "Bar",
    "ByGap",
    "ByShare",
    "Copied",
    "Diagonal",
    "Discretisations",
    "Elastic",
    "EmbeddingImitation",
    "Fitted",
    "Growth",
    "HamiltonianPath",
    "HeadEntropy",
    "Imitation",
    "JacobianNorm",
    "KineticEnergy",
    "LearningPlan",
    "Lesson",
    "LessonPlan",
    "Modes",
    "Objective",
    "Penalties",
    "Penalty",
    "Progress",
    "Prolongation",
    "Run",
    "Sampled",
    "SizeLaw",
    "SmallerSizes",
    "Smoothness",
    "SpectralNorm",
    "SquaredWeights",
    "Stage",
    "StateImitation",
    "Study",
    "Training",
    "Whole",
    "fit",
    "hamiltonian",
    "load",
    "train",
]
