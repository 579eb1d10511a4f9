"""The eight roles. A part is a frozen dataclass that plays one of them: parameters as fields, state in, state out.

What a part may say about itself, beyond what it computes, are its *capabilities*: properties and hooks with a safe default,
which any method of a user's own can use as well. `docs/new_method.md` shows each of them.
"""

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

# `private`: never leaves the client. `personal`: uploaded as the report `types.PERSONAL`, mixed by a `share` part, and sent
# back to each client as its own row.
Mark = Literal["private", "personal"]
Phase = Literal["start", "probe", "train"]
# Which model is scored: with the client's own tensors; with their mean over all clients, or over those of its domain; the
# shared tensors alone, where they make a model.
Scored = Literal["own", "mean", "domain", "global"]


class Part:
    """A piece of a method.

    What it `needs`, `gives` and `remembers` stands in the line of the class, `class Tilted(Weigh, needs=("samples", "loss"))`;
    a part in which it depends on a parameter overrides the property instead.
    """

    role: ClassVar[str]
    _needs: ClassVar[tuple[str, ...]] = ()
    _gives: ClassVar[tuple[str, ...]] = ()
    _remembers: ClassVar[str] = ""

    def __init_subclass__(cls, needs: tuple[str, ...] = (), gives: tuple[str, ...] = (), remembers: str = "") -> None:
        super().__init_subclass__()
        cls._needs, cls._gives = needs or cls._needs, gives or cls._gives
        cls._remembers = remembers or cls._remembers

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be there: a report (`"loss"`), something a shape part makes (`"mask"`), something shared (`"shared
        weight"`), something of the model (`"feature map"`)."""
        return self._needs

    @property
    def gives(self) -> tuple[str, ...]:
        """What the part brings, by the same names."""
        return self._gives

    @property
    def remembers(self) -> str:
        """What the server keeps of each single client between rounds for this part, in words.

        It is what a data owner is told: see `docs/privacy.md`.
        """
        return self._remembers

    @property
    def name(self) -> str:
        """How the part is spoken of: its class in small letters, `distance_weigh`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def key(self) -> str:
        """Under which its state is kept, `weigh.distance_weigh`: parts of two roles never share a state."""
        return f"{self.role}.{self.name}"


class Beginning(NamedTuple):
    """What a client part may use before a client's first round, for several clients at once."""

    clients: Sequence[int]
    received: Received  # the model as first received (its private tensors too), the same for all
    train_alone: Callable[[int, Sequence[str], Callable[[Tensor], bool]], dict[str, Tensor]]
    """(epochs, splits, stop) -> each client's loss on each split after every epoch of training alone, `[m, epochs]`.

    Every client trains the run's first model with one optimizer; a loss is NaN once `stop`, which sees the curve of the
    client's training loss up to then, has said so.
    """


class ClientPart(Part):
    """A part that a client plays, and that may keep tensors at the client from round to round."""

    def start(self, beginning: Beginning) -> list[Tensors]:
        """The state of each client before its first round."""
        return [{} for _ in beginning.clients]


class Wrap(Part):
    """Adds modules to the model, and says which tensors stay with the client or are mixed for it."""

    role = "wrap"
    order: ClassVar[int] = 1
    """Wraps go on in this order: 0 changes layers, 1 adds modules, 2 and 3 go round the whole model."""
    leaves_global: ClassVar[bool] = False
    """Whether clients have models of their own while the shared tensors alone make a model, too."""

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

        It is asked for once per round. A penalty whose gradient is `pull * x + force` is much quicker here than as a loss.
        """
        return {}

    def correct(self, gradients: Tensors, params: Tensors, received: Received, states: ClientState) -> Tensors:
        """Correct the gradient in a way that is no force, after all forces."""
        return gradients

    def finish(self, trained: Trained) -> Tensors:
        """This part's state after the round: tensors of the same names and shapes every time."""
        return trained.states.get(self.key, {})


class Report(ClientPart):
    """What a client sends besides its update. `gives` names the reports."""

    role = "reports"
    stacks: ClassVar[bool] = True
    """False: it cannot be vectorised over clients, and is called for one at a time."""
    runs_model: ClassVar[bool] = True
    """Whether it passes samples through a model; where it does not, padding costs nothing."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("train",)

    def __call__(self, trained: Trained) -> Tensors:
        raise NotImplementedError


class Shape(Part):
    """Edits the stack of updates before it is weighed."""

    role = "shape"

    @property
    def includes_buffers(self) -> bool:
        """Whether averaged buffers (running statistics) go through the whole rule as further columns of the updates."""
        return False

    def measure_consistency(self, state: State) -> Tensor | None:
        """From what this part remembers: of every parameter of every client the share of rounds in which its update had its
        more frequent sign, from 0.5 to 1. `--keep consistency` keeps it for a plot."""
        return None

    def __call__(self, round: Round, state: State) -> Shaped:
        raise NotImplementedError


class Weigh(Part):
    """One weight per client."""

    role = "weigh"
    rank: ClassVar[int] = 2
    """0: the default, 1: a host's plain choice, 2: explicit. In a sum the higher rank wins."""

    @property
    def is_convex(self) -> bool:
        """Whether the weights are non-negative and sum to one: buffers are then averaged with them, too."""
        return True

    @property
    def is_non_negative(self) -> bool:
        return True

    @property
    def gives(self) -> tuple[str, ...]:
        return (*self._gives, "non-negative weights") if self.is_non_negative else self._gives

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
    uses_weights: ClassVar[bool] = True
    """False: it finds weights of its own, and those of `weigh` serve buffers alone."""

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        raise NotImplementedError


class Step(Part):
    """Edits the direction that is added to the model."""

    role = "step"
    comes_last: ClassVar[bool] = False
    """It looks at the direction as it is in the end, whatever the order of a sum."""
    reads_updates: ClassVar[bool] = True
    """Whether it looks at `round.updates` or `round.reported`. False lets the server keep a sum instead of single updates."""

    @property
    def scored_iterate(self) -> str | None:
        """In words, the other iterate that this part gives to be scored (`Stepped.evaluated`)."""
        return None

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        raise NotImplementedError


class Share(Part):
    """What goes down beside the model next round, from the reports and the next model."""

    role = "share"
    reads_updates: ClassVar[bool] = True
    """As for a step."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("train",)

    def begin(self, cohort: int) -> Shared:
        """What goes down in the first round, to this many clients."""
        return {}

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        raise NotImplementedError


SLOTS: dict[str, type[Part]] = {kind.role: kind for kind in (Wrap, Term, Report, Shape, Weigh, Merge, Step, Share)}
SINGLE = ("weigh", "merge")  # roles with one part; the others are chains of any number


def is_at_least_as_specific(part: Part, hook: str, other: str) -> bool:
    """Whether a part's class defines `hook` where it defines `other`, or in a class derived from there.

    A shortcut (`Weigh.raw`) speaks for the rule (`__call__`) only then: who derives from a part and overrides the rule alone
    must not be bypassed by the shortcut of the class above.
    """

    def depth(name: str) -> int:
        return next(i for i, kind in enumerate(type(part).__mro__) if name in vars(kind))

    return depth(hook) <= depth(other)
