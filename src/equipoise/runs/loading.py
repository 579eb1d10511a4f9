"""Loads a trained model from its run folder, with its preprocessing and class names, and measures it on other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from equipoise.data import Client, Federation, Preparation
from equipoise.data.arrays import Groups
from equipoise.data.images import rebuild_preparation
from equipoise.data.stand_in import zero_targets
from equipoise.grammar import did_you_mean, join_words
from equipoise.losses import check_target, parse_loss
from equipoise.methods import parse
from equipoise.models.own import find_file, hash_model_file
from equipoise.runs.reading import read
from equipoise.runs.sums import FILES, MODEL, refuse_damaged
from equipoise.task import ModelSource, Task
from equipoise.training import Training
from equipoise.types import PERSONAL_LOGITS, EquipoiseError


@dataclass(frozen=True, eq=False)
class Loaded:
    """A trained model. It takes raw samples, as the federation held them, and prepares them itself."""

    classes: tuple[str, ...]  # names of the classes
    preparation: Preparation  # of raw samples for the model
    manifest: Mapping[str, Any]  # of the run
    task: Task  # holds the model as a function; its federation is a stub without data
    tensors: Mapping[str, Tensor]  # the shared tensors, and the mean of the clients' own ones
    own: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # client's name -> its own tensors

    def logits(self, x: Tensor, client: str | None = None) -> Tensor:
        """The outputs `[n, outputs]` for raw samples `x [n, ...]`, of the shared model or of that of a client."""
        shape = tuple(self.manifest["data"]["sample"]["shape"])
        if tuple(x.shape[1:]) != shape:
            raise EquipoiseError(f"Samples must be [n, {', '.join(map(str, shape))}]. Found {list(x.shape)}.")
        if client is not None and client not in self.names:
            raise EquipoiseError(f"The run has no client `{client}`.{did_you_mean(client, self.names)}")
        tensors = {**self.tensors, **self.own.get(client or "", {})}
        params = {name: tensors[name] for name in self.task.initial_params}
        buffers = {name: tensors[name] for name in self.task.initial_buffers}
        found = []
        kind = self.task.federation.example().dtype  # of what the model takes: whole numbers, if it takes tokens
        with torch.no_grad():
            for some in x.split(1024):
                out = self.task.apply(params, buffers, self.preparation.evaluation(some).to(kind))
                found.append(out.extra.get(PERSONAL_LOGITS, out.logits) if client in self.own else out.logits)
        return (
            torch.cat(found)[:, : len(self.classes)]
            if found
            else torch.zeros(0, self.task.loss.count_outputs(len(self.classes)))
        )

    def predict(self, x: Tensor, client: str | None = None) -> list[Any]:
        """What the shared model, or that of a client, predicts for raw samples `x [n, ...]`: the name of a class, a
        number, or a tuple with the names of the labels that a sample has."""
        loss, data = self.task.loss, self.task.federation
        answers = loss.decide(self.logits(x, client))
        if loss.target == "number":
            return (data.centre + data.spread * answers).tolist()
        if loss.target == "labels":
            return [tuple(name for name, yes in zip(self.classes, row, strict=True) if yes) for row in answers.tolist()]
        return [self.classes[i] for i in answers.tolist()]

    @property
    def names(self) -> list[str]:
        """The names of the run's clients."""
        return [one["name"] for one in self.manifest["data"]["clients"]]


def load(place: Path | str, model: ModelSource | None = None) -> Loaded:
    """Load the model of a run folder. If the run trained a module of your own, pass that module again as `model`; one
    that was named as text, `mynet.py:Net`, is found if the file is here."""
    run = read(Path(place))
    if not run.is_finished:
        raise EquipoiseError(f"`{place}` holds no finished run: its status is {run.manifest['status']}. Do it again.")
    facts, data = run.manifest, run.manifest["data"]
    refuse_damaged(run.place, facts, {MODEL} & set(facts.get(FILES, {})))
    try:
        stored = load_file(run.place / MODEL)
    except (OSError, SafetensorError):
        raise EquipoiseError(f"`{run.place / MODEL}` is missing or damaged. Do the run again.") from None
    preparation = rebuild_preparation(data["preparation"])
    sample = torch.zeros(2, *data["sample"]["shape"], dtype=getattr(torch, data["sample"]["dtype"]))
    first = Client("first", torch.tensor([0, 1]), torch.tensor([0, 1]))
    marks = data.get("groups")
    stub = Federation(
        data["name"],
        sample,
        zero_targets(data.get("target", "classes"), len(data["classes"]), 2),
        (first,),
        tuple(data["classes"]),
        preparation=preparation,
        centre=data.get("centre", 0.0),
        spread=data.get("spread", 1.0),
        groups=None if marks is None else Groups(marks["name"], tuple(marks["names"]), torch.tensor([0, 0])),
    )
    if model is None:
        _refuse_changed_code(facts)
    buffers = facts["buffers"]
    task = Task.build(
        parse(facts["method"]),
        stub,
        model=model or facts["model"],
        training=Training(**facts["training"]),
        buffers=buffers,
        seed=facts["seed"],
        loss=parse_loss(facts.get("loss", "cross_entropy")),
    )
    if facts["runner"] == "flower" and (task.private or "local" in task.policies.values()):
        raise EquipoiseError(
            f"Parts of the models of `{place}` stayed at the sites: there is no whole model here to load."
        )
    shared = {name: value for name, value in stored.items() if "/" not in name}
    own: dict[str, dict[str, Tensor]] = {}
    for name, value in stored.items():
        if "/" in name:
            client, tensor = name.removeprefix("client ").rsplit("/", 1)
            own.setdefault(client, {})[tensor] = value
    wanted = {**task.initial_params, **task.initial_buffers}
    wrong = [n for n, v in wanted.items() if n not in shared or shared[n].shape != v.shape]
    if wrong:
        raise EquipoiseError(
            f"The model `{facts['model']}` does not fit what `{place}` holds: {join_words(wrong)} differ."
        )
    return Loaded(tuple(data["classes"]), preparation, facts, task, shared, own)


def _refuse_changed_code(facts: Mapping[str, Any]) -> None:
    """Refuse a model of a user's own whose file is not here, or not what it was in the run."""
    file = find_file(facts["model"])
    if file is not None and not file.exists():
        raise EquipoiseError(f"The run trained `{facts['model']}`, and there is no `{file}` here: go to its folder.")
    for name, digest in hash_model_file(facts["model"]).items():
        if facts.get("code", {}).get(name) != digest:
            raise EquipoiseError(f"`{name}` has changed since the run: bring back the file as it was then.")


@dataclass(frozen=True)
class Measured:
    """The scores of a trained model at one client of other data."""

    client: str  # its name
    domain: str  # the client's own name if it has no domain
    score: float  # the accuracy or, where numbers are predicted, the explained variance
    loss: float  # mean over the samples
    samples: int  # how many samples were scored


def measure(trained: Loaded, data: Federation) -> list[Measured]:
    """Score and loss at every client of a federation, on its test samples or, if it has none, its training samples.

    A client whose name the run knows is scored with its own model, if the run stored one.
    """
    check_target(trained.task.loss, data.target)
    if data.classes != trained.classes:
        raise EquipoiseError(
            f"The model knows the classes {join_words(trained.classes)}. Found {join_words(data.classes)} in "
            f"`{data.name}`."
        )
    found = []
    for client in data.clients:
        index = client.test if len(client.test) else client.train
        y = data.y[index]
        logits = trained.logits(data.x[index], client.name if client.name in trained.own else None)
        score = float(trained.task.loss.judge(logits, y).double().mean())
        loss = float(trained.task.loss(logits, y).mean())
        found.append(Measured(client.name, client.domain or client.name, score, loss, len(index)))
    return found
