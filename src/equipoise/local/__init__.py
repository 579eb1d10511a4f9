"""Local training of one client, or of many at once.

The terms of a method are written for one client, without a client axis. For one client they are called directly; for
several they are vectorised with `torch.func.vmap` over tensors stacked along a leading client axis. The results are the
same up to rounding.
"""

from equipoise.local.batches import draw_batches
from equipoise.local.loop import Fitted, fit
from equipoise.local.objective import Start
from equipoise.local.trees import for_each, pick, tree_map

__all__ = ["Fitted", "Start", "draw_batches", "fit", "for_each", "pick", "tree_map"]
