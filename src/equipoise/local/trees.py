"""Trees of tensors, and functions of one client made to work on many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap

Tree = Any  # tensors in nested dicts, tuples and lists; other leaves are left alone


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Apply a function to every tensor of a tree."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        values = [tree_map(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return tree


def pick(tree: Tree, at: Any) -> Tree:
    """Index every tensor of a tree along its leading axis."""
    return tree_map(lambda tensor: tensor[at], tree)


def for_each(function: Callable[..., Tree], count: int) -> Callable[..., Tree]:
    """A function of one client -> a function of stacked clients, whose tensors all have a leading client axis."""
    if count > 1:

        def vectorised(*args: Tree) -> Tree:
            tensors: list[Tensor] = []
            tree_map(tensors.append, args)

            def of_tensors(*slices: Tensor) -> Tree:
                following = iter(slices)
                return function(*tree_map(lambda _: next(following), args))

            # A tree of arguments would take it twice as long. What is drawn at random is the same for all.
            return vmap(of_tensors, randomness="same")(*tensors)

        return vectorised

    def alone(*args: Tree) -> Tree:
        # `squeeze`, not `[0]`: its gradient is a view, that of an index a copy into zeros.
        return tree_map(lambda t: t.unsqueeze(0), function(*tree_map(lambda t: t.squeeze(0), args)))

    return alone
