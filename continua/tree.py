"""Pytrees: dicts, lists, tuples and dataclasses of tensors, such as arguments and states."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from continua.typing import Args, Tensor


def tensors(tree: Args) -> list[Tensor]:
    """The tensors of a pytree, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [tensor for branch in branches(tree) for tensor in tensors(branch)]


def branches(tree: Args) -> Sequence[Any]:
    """What a node of a pytree holds; nothing for a leaf."""
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, list | tuple):
        return tree
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return ()


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
        branches = [mapped(branch, change) for branch in tree]
        return type(tree)(*branches) if type(tree) is not tuple else tuple(branches)
    if is_dataclass(tree) and not isinstance(tree, type):
        changed = {field.name: mapped(getattr(tree, field.name), change) for field in fields(tree)}
        return replace(tree, **changed)
    return tree
