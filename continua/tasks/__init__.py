"""Tasks: data, losses and metrics."""

from continua.data.burgers import burgers_pairs
from continua.data.corpus import Corpus, from_file, python_source
from continua.data.darcy import darcy_pairs
from continua.data.generation import generator_for
from continua.data.images import observed_pixels, point_sets, read_idx, resampled
from continua.data.navier_stokes import vorticity_pairs, vorticity_paths
from continua.data.pairs import Pairs
from continua.data.ragged import Ragged
from continua.data.store import generated
from continua.data.tokens import BytePairs, Characters, Tokeniser
from continua.tasks.classification import TextClassification, classification
from continua.tasks.estimates import Estimated, estimated
from continua.tasks.functions import Functions
from continua.tasks.images import Images, digits, fashion_mnist
from continua.tasks.loader import FromLoader, as_task
from continua.tasks.meshes import OnMeshes
from continua.tasks.retrieval import Retrieval
from continua.tasks.rollouts import RollOut, correlation_time, rollout
from continua.tasks.sentences import Sentences, Unlabelled
from continua.tasks.series import Classes, Scale
from continua.tasks.stored_functions import StoredFunctions
from continua.tasks.stored_text import StoredText
from continua.tasks.task import Coarsens, Example, Score, Task
from continua.tasks.text import NextToken, Text

__all__ = [
    "RollOut",
    "correlation_time",
    "rollout",
    "BytePairs",
    "Characters",
    "Classes",
    "Coarsens",
    "Corpus",
    "Estimated",
    "Example",
    "FromLoader",
    "Functions",
    "Images",
    "NextToken",
    "OnMeshes",
    "Pairs",
    "Ragged",
    "Retrieval",
    "Scale",
    "Score",
    "Sentences",
    "StoredFunctions",
    "StoredText",
    "Task",
    "Text",
    "TextClassification",
    "Tokeniser",
    "Unlabelled",
    "as_task",
    "burgers_pairs",
    "classification",
    "darcy_pairs",
    "digits",
    "estimated",
    "fashion_mnist",
    "from_file",
    "generated",
    "generator_for",
    "observed_pixels",
    "point_sets",
    "python_source",
    "read_idx",
    "resampled",
    "vorticity_pairs",
    "vorticity_paths",
]
