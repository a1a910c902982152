"""Errors that say what was wrong, what was got, and how to mend it."""

from typing import Any


class ContinuaError(ValueError):
    """Base of every error a user can cause: one sentence with what was got, one with a remedy.

    >>> str(ContinuaError("d needs a positive width", got=-3, remedy="Give at(d=...) a whole number above zero."))
    'd needs a positive width, got -3. Give at(d=...) a whole number above zero.'
    """

    def __init__(self, what: str, *, got: object = None, remedy: str = "") -> None:
        sentence = what if got is None else f"{what}, got {got}"
        super().__init__(f"{sentence}. {remedy}".strip() if remedy else f"{sentence}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Its sentence as it is: one process tells the others why it ends."""
        return _said_again, (type(self), str(self)), dict(vars(self))


def _said_again(kind: type[ContinuaError], sentence: str) -> ContinuaError:
    error = kind.__new__(kind)
    error.args = (sentence,)
    return error


class ShapeError(ContinuaError):
    """A tensor has the wrong shape or dtype."""


class GridError(ContinuaError):
    """Nodes, stamps or weights that no axis can carry."""


class MaskError(ContinuaError):
    """A mask that leaves an observed query without keys, or does not fit its grid."""


class ConfigError(ContinuaError):
    """A configuration that names something unknown or contradicts itself."""


class CheckpointError(ContinuaError):
    """A folder or file that cannot be loaded as a model."""


class SolveError(ContinuaError):
    """A depth solve that cannot be set up or did not succeed."""


class SolveFailed(SolveError):
    """A depth solve that started and did not reach the end; ``z`` and ``sample`` say where (None: unknown)."""

    def __init__(
        self, what: str, *, got: object = None, remedy: str = "", z: float | None = None, sample: int | None = None
    ) -> None:
        super().__init__(what, got=got, remedy=remedy)
        self.z, self.sample = z, sample


class RunError(ContinuaError):
    """A run that cannot be started, resumed or finished."""


def install(extra: str) -> str:
    """The command that adds an optional dependency; the distribution is called ``continua-ml``.

    >>> install("space")
    "pip install 'continua-ml[space]'"
    """
    return f"pip install 'continua-ml[{extra}]'"


def nearest(word: str, known: list[str]) -> str:
    """Return the remedy sentence that names the closest known word.

    >>> nearest("hedas", ["heads", "width"])
    "Did you mean 'heads'?"
    """
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."
