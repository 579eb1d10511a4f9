"""Local training, written for one client and run for one or for many.

A term never sees a client axis. For one client its function is called directly; for several it is vectorised with
`torch.func.vmap` over tensors stacked along a leading client axis. The numbers are the same up to float rounding.
"""

from equipoise.local.batches import draw_batches
from equipoise.local.loop import Fitted, fit
from equipoise.local.objective import Start
from equipoise.local.trees import for_each, pick, tree_map

__all__ = ["Fitted", "Start", "draw_batches", "fit", "for_each", "pick", "tree_map"]
