"""The nine roles that parts of a method play, as base classes.

A part is a frozen dataclass that derives from one of them. Its parameters are its fields; it keeps nothing on itself,
but is given its state and returns the next one. Besides what it computes, a part can declare things about itself by
properties and hooks, which all have a safe default. `docs/new_method.md` shows each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from equipoise.errors import EquipoiseError
from equipoise.types import (
    ClientState,
    Local,
    Merged,
    Model,
    Received,
    Remembered,
    Reports,
    Round,
    Selected,
    Sent,
    Shaped,
    Shared,
    State,
    Stepped,
    Tensors,
    Trained,
    Turnout,
    Weighed,
)

# What happens to a tensor that is not shared. A private one never leaves the client. A personal one is uploaded in the
# report `types.PERSONAL`, mixed by a `share` part, and sent back to each client as a row of its own.
Mark = Literal["private", "personal"]
# The phases of a client's work: once before its first round; as a candidate, before it is known who takes part; before
# the training of a round; and that training itself.
Phase = Literal["start", "select", "probe", "train"]
# Which model is scored: the shared tensors with the client's own ones ("own"), with the mean of all clients' own ones
# ("mean") or of those of its domain ("domain"), or the shared tensors alone, where they make a model ("global").
Scored = Literal["own", "mean", "domain", "global"]


class Part:
    """A piece of a method, which plays one role.

    A part declares what it `needs`, `gives` and `remembers` in its class statement, as in
    `class Tilted(Weigh, needs=("samples", "loss"))`. Where that depends on a parameter, it overrides the property
    instead.
    """

    role: ClassVar[str]  # the name of the role, which is also the field of `Method`
    _needs: ClassVar[tuple[str, ...]] = ()
    _gives: ClassVar[tuple[str, ...]] = ()
    _remembers: ClassVar[str] = ""
    _by_columns: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(
        cls,
        needs: tuple[str, ...] | str = (),
        gives: tuple[str, ...] | str = (),
        remembers: str = "",
        by_columns: tuple[str, ...] | str | None = None,
    ) -> None:
        super().__init_subclass__()
        cls._needs = cls._read_names("needs", needs) or cls._needs
        cls._gives = cls._read_names("gives", gives) or cls._gives
        cls._remembers = remembers or cls._remembers
        # Not inherited: a subclass may do something else.
        cls._by_columns = None if by_columns is None else cls._read_names("by_columns", by_columns)

    @classmethod
    def _read_names(cls, word: str, names: tuple[str, ...] | str) -> tuple[str, ...]:
        if isinstance(names, str):  # its letters would pass for names
            raise EquipoiseError(f"`{cls.__name__}`: {word} is a tuple of names. Write {word}=({names!r},).")
        return names

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of what this part cannot do without. A method in which nobody gives one of them cannot be built.

        A need is a report (`"loss"`), something a shape part makes (`"mask"`), something that the server sends to
        clients (`"shared weight"`), or something that the model, the data or the loss must have (`"feature map"`,
        `"validation"`, `"classes"`, `"class outputs"`, `"groups"`, `"two groups"`).
        """
        return self._needs

    @property
    def gives(self) -> tuple[str, ...]:
        """The names of what this part provides for the `needs` of others."""
        return self._gives

    def check_company(self, parts: Sequence[Part]) -> None:
        """Refuse, by an `EquipoiseError`, to be in one method with these parts. By default a part goes with all."""

    @property
    def remembers(self) -> str:
        """What the server keeps about each single client between rounds for this part, in words.

        Data owners are told so: the text appears in the table of `docs/privacy.md`. Empty: nothing is kept.
        """
        return self._remembers

    @property
    def by_columns(self) -> tuple[str, ...] | None:
        """The names of what it remembers or sends that has an entry per parameter, along the last axis; None (the
        default): it must see all parameters at once.

        A part of the server that gives a tuple, perhaps an empty one, promises that it is right if it is given some of the
        columns only: it takes sums over parameters with `round.columns`, with the methods of `round.updates`, or with
        `gram(rows, round.columns)`, and finds tensors by `round.slices`. If all parts of a method do, a run over several
        processes divides rows and memory among them; otherwise each of them holds everything.
        """
        return self._by_columns

    @property
    def name(self) -> str:
        """The part's name in messages: that of its class in small letters, such as `distance_weigh`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def key(self) -> str:
        """The key under which its state is kept: role and name, such as `weigh.distance_weigh`."""
        return f"{self.role}.{self.name}"


class TrainAlone(Protocol):
    """Trains clients alone, each by itself: see `Beginning.train_alone`."""

    def __call__(
        self,
        epochs: int,
        splits: Sequence[str],
        stop: Callable[[Tensor], bool],
        clients: Sequence[int] | None = None,
    ) -> dict[str, Tensor]: ...


class Beginning(NamedTuple):
    """What `ClientPart.start` is given: it prepares the state of several clients before their first round."""

    clients: Sequence[int]  # ids of the m clients
    received: Received  # the model that they receive first, with the initial private tensors: the same for all of them
    optima: Sequence[float | None]  # of each client: the optimal loss that it brings; None: it does not know one
    train_alone: TrainAlone
    """`train_alone(epochs, splits, stop)` trains each client alone, from the run's first model and with one optimizer;
    with `clients=[...]` only these.

    It returns, for each split, the losses of every client after each epoch, `[m, epochs]`. `stop` is given the curve of
    a client's training loss so far, `[epochs so far]`; when it returns True, the later losses of that client are NaN.
    """


class ClientPart(Part):
    """A part that runs at a client, and that can keep tensors there between rounds."""

    def start(self, beginning: Beginning) -> list[Tensors]:
        """The state that this part keeps at each client before its first round: one dict of tensors per client."""
        return [{} for _ in beginning.clients]


class Select(Part):
    """Chooses who takes part in a round. How many do is a setting of the run."""

    role = "select"
    rank: ClassVar[int] = 2
    """Which part is used when two methods are added: the one of higher rank. Two different parts of the same rank are
    an error. 0 is the default (a uniform draw), 2 a rule that must not be replaced."""
    reads_updates: ClassVar[bool] = False
    """Whether `remember` uses `round.updates` or `round.reported`."""

    fills_places: ClassVar[bool] = True
    """Whether all available clients take part where there is a place for each of them."""

    @property
    def asks(self) -> tuple[str, ...]:
        """The reports that candidates make on the current model before anyone is selected. Empty: nobody is asked."""
        return ()

    def check(self, places: int, clients: int) -> None:
        """Raise an `EquipoiseError` if this part cannot choose `places` of `clients` clients. It is called once, before
        the run."""

    def find_candidates(self, turnout: Turnout, state: State) -> Sequence[int]:
        """The clients that make the reports of `asks`: by default all that are available."""
        return turnout.available

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        """Who takes part: at least one and at most `turnout.places` of the clients in `turnout.available`.

        A part that `asks` is not called where all available clients have a place: they all take part.
        """
        raise NotImplementedError

    def remember(self, round: Round, state: State) -> Remembered:
        """The part's next state after a round, from what its clients reported. By default it stays as it is."""
        return state


class Wrap(Part):
    """Changes the model before training, and says which of its tensors are not shared."""

    role = "wrap"
    order: ClassVar[int] = 1
    """The place of this wrap among several, lowest first: 0 changes layers, 1 adds modules, 2 and 3 enclose the
    model."""
    leaves_global: ClassVar[bool] = False
    """Whether the shared tensors alone make a model, although clients also have models of their own."""

    @property
    def scores(self) -> Scored:
        """Which model `accuracy` belongs to. The other models that exist are recorded beside it."""
        return "global"

    def note(self, model: nn.Module) -> str | None:
        """What a reader of the results should know about this wrap on this model; None: nothing."""
        return None

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        """The wrapped model: `model` itself, which may be changed in place, or a new module around it.

        `example [batch, ...]` is a small batch of samples, with which shapes can be found out. The result must return
        `Outputs` with logits `[batch, classes]`. What it draws at random comes from the run's seed.
        """
        return model

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """The parameters and buffers of the wrapped model that are not shared: name -> mark.

        Buffers are never mixed: with either mark they stay at the client.
        """
        return {}


class Term(ClientPart):
    """A piece of the local objective. Override the hooks that the method changes.

    Hooks are written for one client and one batch, without a client axis. They are vectorised over clients: use tensor
    operations, and do not branch on the values of tensors.
    """

    role = "terms"

    def base(self, losses: Tensor, local: Local) -> Tensor:
        """Replace the base losses `[batch]` (those of the task, `local.loss`) by others of the same shape."""
        return losses

    whole_loss: ClassVar[bool] = False
    """Whether `loss` gives one number for the whole batch. It must then leave out padding, where `local.keep` is 0."""

    def loss(self, local: Local) -> Tensor | None:
        """A loss to add: `[batch]`, whose mean over the batch is taken, or a scalar of a term that has `whole_loss`.
        None: nothing is added."""
        return None

    def scale(self, loss: Tensor, received: Received) -> Tensor:
        """A factor on the whole local loss, through which no gradient passes; `loss` is the batch's mean base loss, a
        scalar."""
        return torch.ones_like(loss)

    def frozen(self, received: Received, states: ClientState) -> dict[str, Model]:
        """Models that stay fixed during the round, by name.

        The term finds their features of the current batch, computed in eval mode and without gradient, in
        `local.frozen` under the same names.
        """
        return {}

    @property
    def pull(self) -> float:
        """The factor `pull` in what this term adds to a gradient: `pull * x + force`, for each tensor `x` named by
        `force`."""
        return 0.0

    def force(self, received: Received, states: ClientState) -> Tensors:
        """Constants to add to the gradient, by the name of the parameter.

        For each parameter `x` named here, `pull * x + force` is added to its gradient. `scale` does not apply to it.
        The hook is called once per round. A penalty with such a gradient is much faster here than as a `loss`.
        """
        return {}

    def correct(self, gradients: Tensors, params: Tensors, received: Received, states: ClientState) -> Tensors:
        """The gradient to use instead of `gradients`, for changes that `force` cannot express. Runs after all
        forces."""
        return gradients

    def finish(self, trained: Trained) -> Tensors:
        """This part's state after the round. The tensors must have the same names and shapes in every round."""
        return trained.states.get(self.key, {})


class Report(ClientPart):
    """What a client sends besides its update. `gives` names the reports, which must be defined in `types.REPORTS`."""

    role = "reports"
    stacks: ClassVar[bool] = True
    """Whether it can be vectorised over clients. If False, it is called for one client at a time."""
    runs_model: ClassVar[bool] = True
    """Whether it runs a model on samples. If so, it is called for one client at a time where evaluation depends on the
    whole batch, because there the padding of vectorised clients would change the result."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """When the report is made: after training (`"train"`), or on the received model before training (`"probe"`)."""
        return ("train",)

    def __call__(self, trained: Trained) -> Tensors:
        """The reports of one client, by the names in `gives`, each without a client axis."""
        raise NotImplementedError


class Shape(Part):
    """Edits the round's updates before they are weighed."""

    role = "shape"
    comes_first: ClassVar[bool] = False
    """Whether it stands before all others, in any sum of methods; what it returns is then, for all later parts, what
    the clients reported."""
    finds_attackers: ClassVar[bool] = False
    """Whether it refuses clients whose updates go against the others', so that a guard may leave honest ones more
    room."""

    @property
    def includes_buffers(self) -> bool:
        """Whether averaged buffers (running statistics) become further columns of the updates.

        Everything the method does to an update then happens to them, too.
        """
        return False

    def __call__(self, round: Round, state: State) -> Shaped:
        """The edited updates, from `round.updates`, and the part's next state."""
        raise NotImplementedError


class Weigh(Part):
    """Finds one weight per client of the round."""

    role = "weigh"
    rank: ClassVar[int] = 2
    """Which part is used when two methods are added: the one of higher rank. Two different parts of the same rank are
    an error. 0 is the default weighting (by samples), 1 a plain choice (equal weights), 2 a rule that must not be
    replaced."""

    @property
    def is_convex(self) -> bool:
        """Whether the weights are non-negative and sum to one. Buffers are then averaged with them, otherwise by
        samples."""
        return True

    @property
    def is_non_negative(self) -> bool:
        """Whether no weight is ever negative."""
        return True

    @property
    def gives(self) -> tuple[str, ...]:
        """What the class statement says, and `"non-negative weights"` where that is so."""
        return (*self._gives, "non-negative weights") if self.is_non_negative else self._gives

    def raw(self, reports: Reports) -> Tensor | None:
        """The weights `[m]` before division by their sum, if each depends on its own client's reports only; otherwise
        None.

        With such weights the server can add up the updates as they arrive, and need not keep them.
        """
        return None

    def __call__(self, round: Round, state: State) -> Weighed:
        """The weights `[m]`, one per client in the order of `round.clients`, and the part's next state."""
        raise NotImplementedError


class Merge(Part):
    """Makes one direction from the shaped updates and the weights."""

    role = "merge"
    rank: ClassVar[int] = 2
    """Which part is used when two methods are added: the one of higher rank. Two different parts of the same rank are
    an error. 0 is the default merge (the weighted sum), 2 a rule that must not be replaced."""
    uses_weights: ClassVar[bool] = True
    """False: it finds its own weights, and those of the `weigh` part are used only to average buffers."""

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        """The direction `[G]`, from `round.updates` and `weights [m]`.

        It must be a new tensor and no view of an argument, because the next model may be computed in its memory.
        """
        raise NotImplementedError


class Step(Part):
    """Edits the direction that is added to the model."""

    role = "step"
    comes_last: ClassVar[int] = 0
    """The place of this step among several in a sum of methods, lowest first: 0 makes the direction, 1 takes it for a
    gradient (an optimizer of the server), 2 needs the final one."""
    reads_updates: ClassVar[bool] = True
    """Whether it uses `round.updates` or `round.reported`. If no part does, the server keeps only a sum of the
    updates."""

    @property
    def scored_iterate(self) -> str | None:
        """The model that this part gives in `Stepped.evaluated` to be scored, in words; None: it gives none."""
        return None

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        """The direction `[G]` to use instead of `direction [G]`, and the part's next state."""
        raise NotImplementedError


class Share(Part):
    """Computes what clients receive beside the next model, from the reports and that model."""

    role = "share"
    reads_updates: ClassVar[bool] = True
    """Whether it uses `round.updates` or `round.reported`. If no part does, the server keeps only a sum of the
    updates."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """When it is called: after the clients' training (`"train"`), or after a probe before training (`"probe"`)."""
        return ("train",)

    def begin(self, cohort: int) -> Shared:
        """What clients receive in the first round, in which `cohort` clients take part."""
        return {}

    def scale_capped(self, weights: Tensor) -> Tensor:
        """Of a part that sends a `weight` per client: these weights `[m]`, which a guard has changed with the same sum, with
        the size that they should have. By default as they are."""
        return weights

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        """What to send, for all clients or one row per client, and the part's next state.

        `theta [G]` is the next model; after a probe it is the current one.
        """
        raise NotImplementedError


# Role -> its base class, in the order in which a round meets the roles.
SLOTS: dict[str, type[Part]] = {
    kind.role: kind for kind in (Select, Wrap, Term, Report, Shape, Weigh, Merge, Step, Share)
}
SINGLE = ("select", "weigh", "merge")  # roles with exactly one part; the others take any number, in a tuple


def is_at_least_as_specific(part: Part, hook: str, other: str) -> bool:
    """Whether a part's class defines `hook` in the same class as `other`, or in one derived from it.

    Only then can a shortcut (`Weigh.raw`) stand for the rule (`__call__`): a subclass that overrides only the rule must
    not be bypassed by the shortcut that it inherits.
    """

    def depth(name: str) -> int:
        return next(i for i, kind in enumerate(type(part).__mro__) if name in vars(kind))

    return depth(hook) <= depth(other)
