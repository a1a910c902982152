"""Tasks: data, losses and metrics."""

from continua.tasks.corpus import Corpus, from_file, python_source
from continua.tasks.elliptic import darcy_pairs
from continua.tasks.equations import burgers_pairs
from continua.tasks.functions import Functions
from continua.tasks.images import Images, digits
from continua.tasks.pairs import Pairs
from continua.tasks.store import generated
from continua.tasks.task import Example, Score, Task, generator_for
from continua.tasks.text import Text
from continua.tasks.tokens import BytePairs, Characters, Tokeniser
from continua.tasks.vorticity import vorticity_pairs, vorticity_paths

__all__ = [
    "vorticity_paths",
    "vorticity_pairs",
    "generated",
    "darcy_pairs",
    "burgers_pairs",
    "Pairs",
    "Functions",
    "BytePairs",
    "Characters",
    "Corpus",
    "Example",
    "Images",
    "Score",
    "Task",
    "Text",
    "Tokeniser",
    "digits",
    "from_file",
    "generator_for",
    "python_source",
]
