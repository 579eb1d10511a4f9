"""What torch can compute for many models or samples at once, with `torch.func.vmap`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refuse_fallbacks() -> Iterator[None]:
    """A context in which `vmap` raises a `UserWarning` where it would compute an operation for one after the other.

    It has no version for many of some operations, such as the attention of torch. It would be slower with than without
    `vmap` there, and would say so on the screen. For others, such as nn.GRU, it raises a `RuntimeError` in any case.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop", category=UserWarning)
        yield
