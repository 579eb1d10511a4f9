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
    Model,
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

Mark = Literal["private", "personal"]  # never leaves the client; uploaded, mixed for each client, and sent back
Phase = Literal["start", "probe", "train"]
# Which model is scored: with the client's own tensors; with their mean over all clients, or over those of its domain; the
# shared tensors alone, where they make a model.
Scored = Literal["own", "mean", "domain", "global"]


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
    def keeps_updates(self) -> bool:
        """Whether the part's state holds rows of the round's updates: a runner must then not reuse their memory."""
        return False

    @property
    def key(self) -> str:
        """The name under which this part's state is kept, and under which it is spoken of."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()


class Beginning(NamedTuple):
    """What a client part may use in the phase `start`, for several clients at once."""

    clients: Sequence[int]
    received: Received  # the model as first received (its private tensors too), the same for all
    alone: Callable[[int, Sequence[str], Callable[[Tensor], bool]], dict[str, Tensor]]
    # (epochs, splits, stop) -> each client's loss on each split after every epoch of training alone from the run's first
    # model, with one optimiser, [m, epochs]; NaN once `stop(curve of the training loss)` has said so


class ClientPart(Part):
    def start(self, beginning: Beginning) -> list[Tensors]:
        """The state of each client before its first round."""
        return [{} for _ in beginning.clients]


class Wrap(Part):
    """Adds modules to the model, and says which tensors stay with the client or are mixed for it."""

    role = "wrap"
    order: ClassVar[int] = (
        1  # wraps go on in this order: 0 changes layers, 1 adds modules, 2 and 3 go round the whole model
    )
    leaves_global: ClassVar[bool] = (
        False  # clients have models of their own, and the shared tensors alone make one, too
    )

    @property
    def scores(self) -> Scored:
        """Which model this wrap wants scored. The others that exist are recorded beside it."""
        return "global"

    def note(self, model: nn.Module) -> str | None:
        """What a reader of the results should know of this wrap on this model."""
        return None

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        return model

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """Names of parameters and buffers that are not shared. Buffers stay with the client under either mark."""
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

    def frozen(self, received: Received, states: ClientState) -> dict[str, Model]:
        """Models that do not change during a round, and whose features of the batch (in eval mode, without gradient) the term
        finds in `local.frozen` under the same names."""
        return {}

    @property
    def pull(self) -> float:
        """See `force`."""
        return 0.0

    def force(self, received: Received, states: ClientState) -> Tensors:
        """What is added to the gradient of the tensors it names, together with `pull` times the tensor itself, after `scale`.

        It is asked for once a round. A penalty whose gradient is `pull * x + force` is much quicker here than as a loss.
        """
        return {}

    def correct(self, gradients: Tensors, params: Tensors, received: Received, states: ClientState) -> Tensors:
        """Correct the gradient in a way that is no force, after all forces."""
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
    """Shaped updates and weights -> one direction, in memory of its own: it may become the next model."""

    role = "merge"
    rank: ClassVar[int] = 2
    weighs: ClassVar[bool] = True  # False: it finds weights of its own, and those of `weigh` serve buffers alone

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        raise NotImplementedError


class Step(Part):
    """Edits the direction that is added to the model."""

    role = "step"
    last: ClassVar[bool] = False  # it looks at the direction as it is in the end, whatever the order of a sum

    @property
    def streams(self) -> bool:
        """Whether the part looks at the direction alone, and not at single updates."""
        return False

    @property
    def evaluates(self) -> str | None:
        """In words, the other iterate that this part gives to be scored."""
        return None

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
