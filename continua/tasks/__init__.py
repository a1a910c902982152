"""Tasks: data, losses and metrics."""

from continua.tasks.corpus import Corpus, from_file, python_source
from continua.tasks.images import Images, digits
from continua.tasks.task import Example, Score, Task, generator_for
from continua.tasks.text import Text
from continua.tasks.tokens import BytePairs, Characters, Tokeniser

__all__ = [
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
