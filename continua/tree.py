"""Pytrees: dicts, lists and tuples of tensors, such as arguments and states."""

from collections.abc import Callable, Sequence

from continua.typing import Args, Tensor


def tensors(tree: Args) -> list[Tensor]:
    """The tensors of a pytree of dicts, lists and tuples, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for branch in tree for tensor in tensors(branch)]


def with_tensors(tree: Args, values: Sequence[Tensor]) -> Args:
    """The same pytree with other tensors, in the order of ``tensors``."""
    rest = iter(values)
    return mapped(tree, lambda _: next(rest))


def mapped(tree: Args, change: Callable[[Tensor], Tensor]) -> Args:
    """The same pytree with ``change`` applied to every tensor."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(branch, change) for key, branch in tree.items()}
    if isinstance(tree, list):
        return [mapped(branch, change) for branch in tree]
    if isinstance(tree, tuple):
        return tuple(mapped(branch, change) for branch in tree)
    return tree
