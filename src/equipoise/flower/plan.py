"""The plan of a run: what the server and the sites agree on. It stands in the app's `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from equipoise.data.catalogue import name_setting
from equipoise.engine.settings import check_option
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, fit_to_type, require
from equipoise.method import Method
from equipoise.method.privacy import Protection, refuse_unprotected
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.models.own import find_file
from equipoise.rounds.evaluation import choose_model_for_unseen, list_models_at_home
from equipoise.task import BufferPolicy, ModelSource, Task
from equipoise.training import Training, check_training_changes

TRAINING = tuple(one.name for one in fields(Training))  # settings of the local training


@dataclass(frozen=True)
class Plan:
    """One federated run. What is not given comes from the protocol of the sites' data.

    The run begins when `sites` sites are connected. A round waits `round_timeout` seconds for answers, and needs
    `min_sites` valid ones (by default half of the sites asked). With fewer it is repeated or skipped, as `too_few`
    says; after `patience` such tries in a row the run stops.
    """

    method: Method | str = "fedavg"
    data: str = ""  # a data set that is dealt out to the sites, for a trial; empty: sites bring their own
    sites: int = 2
    rounds: int | None = None
    seed: int = 0
    participation: float | None = None
    model: ModelSource | None = None
    training: Mapping[str, object] = field(default_factory=dict)  # settings that differ from the protocol's, by name
    buffers: BufferPolicy = "average"
    eval_every: int = 1
    loss: str = ""  # what sites minimise; empty: what their data ask for
    metrics: str = ""  # recorded beside the score and the loss, separated by commas
    min_sites: int | None = None
    round_timeout: float = 600.0
    start_timeout: float = 600.0
    too_few: Literal["repeat", "skip"] = "repeat"
    patience: int = 3
    guard: bool = False  # limit what one site can gain by what it sends
    protection: Protection = "none"  # a method that does not work under it is refused; nothing else is done about it
    site_state: str = ""  # folder where each site keeps its state for a restart of its SuperNode; empty: none
    resume: bool = False  # go on with the same run where it stopped
    out: str = "runs"  # folder where the server stores the run
    hold_out: int | str = 0  # sites that never train and are only scored: how many, or names of sites or domains
    drop_missing: bool = False  # leave out rows with a missing value, unless a site's --node-config says otherwise

    def __post_init__(self) -> None:
        require(self.sites >= 1, "sites", "at least 1", self.sites)
        enough = self.min_sites is None or 1 <= self.min_sites <= self.sites
        require(enough, "min_sites", f"from 1 to {self.sites}", self.min_sites)
        for name in ("rounds", "participation", "eval_every"):
            check_option(name, getattr(self, name))
        if self.loss:
            check_option("loss", self.loss)
        for name in ("round_timeout", "start_timeout", "patience"):
            require(getattr(self, name) > 0, name, "above 0", getattr(self, name))
        refuse_unprotected(self.chosen, self.protection)
        if self.rounds is not None:  # otherwise the rounds are known when the sites are connected
            Training(**{n: v for n, v in self.training.items() if n in ("lr", "schedule")}).rate.check(self.rounds)  # type: ignore[arg-type]
        if self.chosen.is_pooled:
            raise EquipoiseError(
                f"`{self.chosen}` trains on all data in one place, and here no data leaves its site. Run it as a "
                f"simulation: equipoise run ... --method {self.chosen}."
            )

    @property
    def chosen(self) -> Method:
        """The method, with the parameters that suit the data set."""
        method = parse(self.method) if isinstance(self.method, str) else self.method
        return adapt_to_data(method, name_setting(self.data))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Plan:
        """Read the plan from a Flower app's configuration. Settings of the local training are among the others.

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

    def find_model(self, folder: Path | None) -> Plan:
        """The plan, with the place of its model if that is a file which the app carries in this folder.

        No other file is imported, whatever a run's configuration says.
        """
        file = find_file(self.model) if isinstance(self.model, str) else None
        if file is None:
            return self
        if folder is None or file != Path(file.name) or not (folder / file).is_file():
            raise EquipoiseError(
                f"The run's configuration has model={self.model!r}, a file that the app does not carry. Write the app with "
                "`equipoise deploy init --model mynet.py:Net`, which copies it."
            )
        return replace(self, model=str(folder / str(self.model).strip()))

    def trained_as(self, protocol: Training) -> Training:
        """The protocol's local training, with the changes of this plan."""
        return protocol.change(self.training)

    def refuse_averaged_models(self, task: Task) -> None:
        """Refuse a method whose scored model needs tensors of several sites: each site scores by itself."""
        if task.federation.unseen and choose_model_for_unseen(self.chosen, task) != "global":
            raise EquipoiseError(
                f"`{self.chosen}` has no global model, by which sites that are held out could be scored: tensors stay at "
                "the sites that train. Leave hold_out out, or run it as a simulation."
            )
        if not list_models_at_home(self.chosen, task):
            raise EquipoiseError(
                f"`{self.chosen}` scores a model averaged over tensors that never leave their sites. Let it score the "
                "sites' own models, or run it as a simulation."
            )
