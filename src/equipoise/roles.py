"""The eight roles. A part is a frozen dataclass that plays one of them: parameters as fields, state in, state out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.types import (
    ClientState,
    Local,
    Merged,
    Received,
    Reports,
    Round,
    Sent,
    Shaped,
    Shared,
    State,
    Stepped,
    Tensors,
    Trained,
    Weighed,
)

Mark = Literal["shared", "private"]
Phase = Literal["start", "probe", "train"]
# How private tensors are filled when a model is scored: with the client's own, with their mean over all clients or over those
# of the domain; or they play no part.
Scored = Literal["own", "mean", "domain", "unused"]


class Part:
    """A piece of a method.

    `needs` and `gives` name what must be there and what the part brings: a report (`"loss"`), something a shape part
    makes (`"mask"`), something shared (`"shared weight"`), or something of the model (`"feature map"`).
    """

    role: ClassVar[str]

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    @property
    def gives(self) -> tuple[str, ...]:
        return ()

    @property
    def key(self) -> str:
        """The name under which this part's state is kept, and under which it is spoken of."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()


class Beginning(NamedTuple):
    """What a client part may use in the phase `start`, for several clients at once."""

    clients: Sequence[int]
    first: Tensors  # the parameters that a run begins with, the same for all
    first_buffers: Tensors
    alone: Callable[[int, Sequence[str], Callable[[Tensor], bool]], dict[str, Tensor]]
    # (epochs, splits, stop) -> each client's loss on each split after every epoch of training alone from `first`, with one
    # optimiser, [m, epochs]; NaN once `stop(curve of the training loss)` has said so


class ClientPart(Part):
    def start(self, beginning: Beginning) -> list[Tensors]:
        """The state of each client before its first round."""
        return [{} for _ in beginning.clients]


class Wrap(Part):
    """Adds modules to the model, and says which tensors stay with the client."""

    role = "wrap"

    @property
    def scores(self) -> Scored:
        """How this wrap's private tensors are filled when a model is scored."""
        return "unused"

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        return model

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """Names of parameters and buffers that are not shared."""
        return {}


class Term(ClientPart):
    """A piece of the local objective, written for one client and one batch. Override what the method changes."""

    role = "terms"

    def base(self, losses: Tensor, local: Local) -> Tensor:
        """Map the base losses `[batch]`."""
        return losses

    def loss(self, local: Local) -> Tensor | None:
        """A loss to add: `[batch]` (its mean is taken) or a scalar."""
        return None

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        """A factor on the whole local loss, constant for its gradient; `loss` is the batch's mean base loss."""
        return torch.ones_like(loss)

    def correct(self, gradients: Tensors, received: Received, states: ClientState) -> Tensors:
        """Correct the gradient."""
        return gradients

    def finish(self, trained: Trained) -> Tensors:
        """This part's state after the round."""
        return trained.states.get(self.key, {})


class Report(ClientPart):
    """What a client sends besides its update. `gives` names the reports."""

    role = "reports"
    stacks: ClassVar[bool] = True  # False: cannot be vectorised over clients, and is called for one at a time
    evaluates: ClassVar[bool] = True  # whether it runs a model

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("train",)

    def __call__(self, trained: Trained) -> Tensors:
        raise NotImplementedError


class Shape(Part):
    """Edits the stack of updates before it is weighed."""

    role = "shape"

    @property
    def takes_buffers(self) -> bool:
        """Whether buffers go through the rule as further columns (FedHEAL as released)."""
        return False

    def __call__(self, round: Round, state: State) -> Shaped:
        raise NotImplementedError


class Weigh(Part):
    """One weight a client."""

    role = "weigh"
    rank: ClassVar[int] = 2  # 0: the default, 1: a host's plain choice, 2: explicit. In a sum the higher rank wins.
    simplex: ClassVar[bool] = True  # the weights are non-negative and sum to one
    positive: ClassVar[bool] = True  # the weights are non-negative

    @property
    def gives(self) -> tuple[str, ...]:
        return ("non-negative weights",) if self.positive else ()

    def raw(self, reports: Reports) -> Tensor | None:
        """Weights before they are divided by their sum, when each follows from its client's reports alone; else None.

        Updates can then be summed up as they come, and need not be kept.
        """
        return None

    def __call__(self, round: Round, state: State) -> Weighed:
        raise NotImplementedError


class Merge(Part):
    """Shaped updates and weights -> one direction."""

    role = "merge"
    rank: ClassVar[int] = 2

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        raise NotImplementedError


class Step(Part):
    """Edits the direction that is added to the model."""

    role = "step"

    @property
    def streams(self) -> bool:
        """Whether the part looks at the direction alone, and not at single updates."""
        return False

    @property
    def keeps_updates(self) -> bool:
        """Whether the part's state holds rows of the round's updates: a runner must then not reuse their memory."""
        return False

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        raise NotImplementedError


class Share(Part):
    """What goes down beside the model next round, from the reports and the next model."""

    role = "share"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("train",)

    def begin(self, cohort: int) -> Shared:
        """What goes down in the first round, to this many clients."""
        return {}

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        raise NotImplementedError
