"""What the server and the sites of a federation agree on: all of it stands in the app's `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

from equipoise.data.catalogue import is_path
from equipoise.engine.settings import check_option
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, fit_to_type, require
from equipoise.method import Method
from equipoise.method.privacy import Protection, refuse_unprotected
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.rounds.evaluation import list_models_at_home
from equipoise.task import BufferPolicy, ModelSource, Task
from equipoise.training import Training, check_training_changes

TRAINING = tuple(one.name for one in fields(Training))  # a run's configuration may hold any of these


@dataclass(frozen=True)
class Plan:
    """One federated run. What is not given comes from the protocol of the sites' data.

    `sites` answer before the run begins. A round waits `round_timeout` seconds for answers and counts with at least
    `min_sites` of them (by default half of those asked). With fewer it is repeated, or skipped, as `too_few` says; after
    `patience` such rounds on end the run stops.
    """

    method: Method | str = "fedavg"
    data: str = ""  # a data set, of which each site takes a part to try things out; empty: sites bring their own
    sites: int = 2
    rounds: int | None = None
    seed: int = 0
    participation: float | None = None
    model: ModelSource | None = None
    training: Mapping[str, object] = field(default_factory=dict)  # what differs from the protocol, by name
    buffers: BufferPolicy = "average"
    eval_every: int = 1
    min_sites: int | None = None
    round_timeout: float = 600.0
    start_timeout: float = 600.0
    too_few: Literal["repeat", "skip"] = "repeat"
    patience: int = 3
    guard: bool = False  # limit what a site can gain by a false loss
    protection: Protection = "none"  # refuse methods that do not work under it
    site_state: str = ""  # folder at each site for what it keeps between rounds, when its SuperNode is started again
    resume: bool = False  # go on with the same run where it stopped
    out: str = "runs"

    def __post_init__(self) -> None:
        require(self.sites >= 1, "sites", "at least 1", self.sites)
        enough = self.min_sites is None or 1 <= self.min_sites <= self.sites
        require(enough, "min_sites", f"from 1 to {self.sites}", self.min_sites)
        for name in ("rounds", "participation", "eval_every"):
            check_option(name, getattr(self, name))
        for name in ("round_timeout", "start_timeout", "patience"):
            require(getattr(self, name) > 0, name, "above 0", getattr(self, name))
        refuse_unprotected(self.chosen, self.protection)
        if self.chosen.is_pooled:
            raise EquipoiseError(
                f"`{self.chosen}` trains on all data in one place, and here no data leaves its site. Run it as a "
                f"simulation: equipoise run ... --method {self.chosen}."
            )

    @property
    def chosen(self) -> Method:
        """The method, with the parameters that suit the data set."""
        method = parse(self.method) if isinstance(self.method, str) else self.method
        known = "" if is_path(self.data) else self.data.split("(")[0].strip().replace("_", "-")
        return adapt_to_data(method, known)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Plan:
        """The plan in a Flower app's configuration; settings of the local training stand beside the others.

        >>> Plan.from_config({"method": "fedprox", "sites": 3, "lr": 0.1}).training
        {'lr': 0.1}
        """
        hints = get_type_hints(cls)
        mistakes = Mistakes()
        settings = {key: key.replace("-", "_") for key in config}
        changed = check_training_changes({n: config[key] for key, n in settings.items() if n in TRAINING}, mistakes)
        given: dict[str, Any] = {}
        for key, name in settings.items():
            with mistakes.noted():
                if name in ("model", "method"):
                    text = fit_to_type(config[key], str, f"Setting `{key}`")
                    given[name] = None if name == "model" and not text else text
                elif name in hints and name != "training":
                    given[name] = fit_to_type(config[key], hints[name], f"Setting `{key}`")
                elif name not in TRAINING:
                    known = [known.replace("_", "-") for known in (*hints, *TRAINING) if known != "training"]
                    raise EquipoiseError(
                        f"Unknown setting `{key}`.{did_you_mean(key, known)} There are: {', '.join(known)}."
                    )
        with mistakes.noted():
            found = cls(**given, training=changed)
        mistakes.refuse()
        return found

    def trained_as(self, protocol: Training) -> Training:
        """The protocol's local training with what this plan changes."""
        return replace(protocol, **self.training)  # type: ignore[arg-type]

    def refuse_averaged_models(self, task: Task) -> None:
        """Only models that a site can put together by itself can be scored."""
        if not list_models_at_home(self.chosen, task):
            raise EquipoiseError(
                f"`{self.chosen}` scores a model averaged over tensors that never leave their sites. Let it score the "
                "sites' own models, or run it as a simulation."
            )
