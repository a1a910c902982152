"""Tasks: data, losses and metrics."""

from continua.tasks.corpus import Corpus, from_file, python_source
from continua.tasks.elliptic import darcy_pairs
from continua.tasks.equations import burgers_pairs
from continua.tasks.functions import Functions
from continua.tasks.images import Images, digits, fashion_mnist, observed_pixels, point_sets, read_idx, resampled
from continua.tasks.pairs import Pairs
from continua.tasks.ragged import Ragged
from continua.tasks.series import Classes, Scale
from continua.tasks.store import generated
from continua.tasks.task import Example, Score, Task, generator_for
from continua.tasks.text import Text
from continua.tasks.tokens import BytePairs, Characters, Tokeniser
from continua.tasks.vorticity import vorticity_pairs, vorticity_paths

__all__ = [
    "BytePairs",
    "Characters",
    "Classes",
    "Corpus",
    "Example",
    "Functions",
    "Images",
    "Pairs",
    "Ragged",
    "Scale",
    "Score",
    "Task",
    "Text",
    "Tokeniser",
    "burgers_pairs",
    "darcy_pairs",
    "digits",
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
