"""Trees of tensors, and how a function written for one client is applied to many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap

Tree = Any  # tensors in nested dicts, tuples and lists; other leaves are allowed, and not changed


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Apply a function to every tensor of a tree: a tree of the results."""
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
    """Turn a function of one client into one of `count` clients, whose tensors all have a leading client axis."""
    if count > 1:

        def vectorised(*args: Tree) -> Tree:
            tensors: list[Tensor] = []
            tree_map(tensors.append, args)

            def of_tensors(*slices: Tensor) -> Tree:
                following = iter(slices)
                return function(*tree_map(lambda _: next(following), args))

            # `vmap` gets a flat list of tensors, because it takes twice as long with trees. Random numbers that the
            # function draws are the same for all clients.
            return vmap(of_tensors, randomness="same")(*tensors)

        return vectorised

    def alone(*args: Tree) -> Tree:
        # `squeeze` and not `[0]`: the backward pass of an index copies the gradient into a tensor of zeros.
        return tree_map(lambda t: t.unsqueeze(0), function(*tree_map(lambda t: t.squeeze(0), args)))

    return alone
