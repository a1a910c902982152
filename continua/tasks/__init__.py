"""Tasks: data, losses and metrics."""

from continua.tasks.corpus import Corpus, from_file, python_source
from continua.tasks.task import Example, Score, Task, generator_for
from continua.tasks.text import Text
from continua.tasks.tokens import BytePairs, Characters, Tokeniser

__all__ = [
    "BytePairs",
    "Characters",
    "Corpus",
    "Example",
    "Score",
    "Task",
    "Text",
    "Tokeniser",
    "from_file",
    "generator_for",
    "python_source",
]
