"""The settings of a run: all that decides what it computes, as one value that is made before anything is built."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from equipoise.data import Federation, load_federation
from equipoise.data.clients import Client, Crowd
from equipoise.data.federation import HoldOut, draw_scored, find_scored
from equipoise.engine.checks import SIMULATION_CHECKS, Checks
from equipoise.engine.guard import Guard
from equipoise.engine.runners import RunnerName
from equipoise.errors import EquipoiseError
from equipoise.grammar import fit_to_type, require
from equipoise.losses import CROSS_ENTROPY, Loss, parse_loss
from equipoise.method import Method
from equipoise.method.plugins import hash_own_code
from equipoise.method.registry import adapt_to_data, describe
from equipoise.methods import parse
from equipoise.metrics import METRICS
from equipoise.models.own import hash_model_file, hide_folder
from equipoise.schedules import Rate, parse_schedule
from equipoise.task import BufferPolicy, ModelSource, check_loss
from equipoise.training import Training, has_momentum


@dataclass(frozen=True, eq=False)
class Settings:
    """One run, before its first round. `Settings.of` fills in what the user left out."""

    method: Method
    federation: Federation
    model: ModelSource  # a network as text, a module, or a function that makes one
    rounds: int  # federated rounds
    seed: int  # of everything random
    participation: float  # share of the clients in each round
    training: Training  # how a client trains in a round
    buffers: BufferPolicy | Mapping[str, BufferPolicy]  # what becomes of running statistics, for all or by name
    runner: RunnerName
    device: str  # cpu, cuda or mps
    eval_every: int  # rounds from one evaluation to the next
    threads: int | None  # cores to use; None: all of them
    checks: Checks  # which answers count
    guard: Guard | None  # limits what one client can gain by what it sends
    notes: tuple[str, ...] = ()  # what a reader of the results should know
    limits: Mapping[str, object] | None = None  # how long the server of a real federation waits, for the manifest
    train_scores: bool = True  # score the training data, too, whenever the model is evaluated
    until_flat: bool = False  # end the run when it has converged; `rounds` is then a limit
    loss: Loss = CROSS_ENTROPY  # what clients minimise
    metrics: tuple[str, ...] = ()  # recorded beside the score and the loss
    eval_clients: int | None = None  # clients that are scored, drawn by the seed; None: all, or a sample of a crowd

    @classmethod
    def of(
        cls,
        method: Method | str,
        federation: Federation | str,
        *,
        model: ModelSource | None = None,
        rounds: int | None = None,
        seed: int = 0,
        participation: float | None = None,
        training: Training | None = None,
        buffers: BufferPolicy | Mapping[str, BufferPolicy] = "average",
        runner: RunnerName = "auto",
        device: str = "cpu",
        eval_every: int = 1,
        threads: int | None = None,
        checks: Checks = SIMULATION_CHECKS,
        guard: Guard | None = None,
        limits: Mapping[str, object] | None = None,
        train_scores: bool = True,
        until_flat: bool = False,
        hold_out: HoldOut = 0,
        loss: Loss | str | None = None,
        metrics: Sequence[str] = (),
        eval_clients: int | None = None,
    ) -> Settings:
        """The settings of a run. What is not given comes from the federation's protocol, or from the parameters that a
        method has for a data set of the library."""
        loaded = load_federation(federation) if isinstance(federation, str) else federation
        data = loaded.draw_for(seed).hold_out(hold_out)
        chosen = adapt_to_data(parse(method) if isinstance(method, str) else method, data.setting)
        if chosen.validates and not data.is_elsewhere:  # real sites set validation data aside themselves
            data = data.with_validation()
        protocol = data.protocol
        total = protocol.rounds if rounds is None else rounds
        share = protocol.participation if participation is None else participation
        options: dict[str, object] = {
            "rounds": total, "participation": share, "eval_every": eval_every, "device": device,
            "eval_clients": eval_clients,
        }  # fmt: skip
        for name, value in options.items():
            check_option(name, value)
        wanted = protocol.loss if loss is None else loss
        minimised = parse_loss(wanted) if isinstance(wanted, str) else wanted
        check_loss(chosen, data, minimised)
        found = cls(
            method=chosen,
            federation=data,
            model=model or protocol.model,
            rounds=total,
            seed=seed,
            participation=share,
            training=(training or protocol.training).change_as_demanded(chosen.training),
            buffers=buffers,
            runner=runner,
            device=device,
            eval_every=eval_every,
            threads=threads,
            checks=checks,
            guard=guard,
            notes=(
                *_note_overruled(chosen, training),
                *_note_dropped(protocol.training, training),
                *_note_idle(chosen, share),
                *_note_sample(data, draw_scored(data, eval_clients, seed)),
                *_note_unreached((training or protocol.training).schedule, total),
            ),
            limits=limits,
            train_scores=train_scores,
            until_flat=until_flat,
            loss=minimised,
            metrics=check_metrics(metrics, minimised),
            eval_clients=eval_clients,
        )
        chosen.select.check(found.cohort, len(data))
        for rate in found.rates:
            rate.check(found.rounds)
        require(
            checks.quorum is None or checks.quorum <= found.cohort,
            "quorum",
            f"at most {found.cohort}, the clients of a round",
            checks.quorum,
        )
        return found

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The learning rates of the clients' training and of the method's parts, each over all rounds."""
        return (self.training.rate, *self.method.rates)

    @property
    def cohort(self) -> int:
        """How many clients take part in each round."""
        everyone = 1 if self.method.is_pooled else len(self.federation)
        return max(1, round(self.participation * everyone))

    @cached_property
    def scored(self) -> Sequence[int]:
        """The numbers of the clients that are scored."""
        return draw_scored(self.federation, self.eval_clients, self.seed)

    @property
    def model_name(self) -> str:
        """The name of the model in records: its text, or the name of its class or function."""
        if isinstance(self.model, str):
            return hide_folder(self.model)
        return (
            type(self.model).__name__
            if isinstance(self.model, nn.Module)
            else getattr(self.model, "__name__", "own model")
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All that is needed to know what the run is, and to do it again, as JSON values."""
        data = self.federation
        is_crowd = isinstance(data.clients, Crowd)  # of which only those that are scored are told one by one
        told = [data.clients[k] for k in self.scored] if is_crowd else data.clients
        # Labels of real sites are unknown here.
        held = [None] * len(told) if data.is_elsewhere else data.class_counts(clients=told).tolist()
        clients = [
            {
                "name": c.name,
                "domain": c.domain,
                "train": len(c.train),
                "validation": len(c.validation),
                "test": len(c.test),
                "classes": counts,
                **({} if c.optimum is None else {"optimum": c.optimum}),
            }
            for c, counts in zip(told, held, strict=True)
        ]
        found: dict[str, Any] = {
            "method": str(self.method),
            "parameters": describe(self.method),
            "data": {
                "name": data.name,
                "arguments": data.arguments,
                **({"redrawn": True} if data.redrawn else {}),
                "fingerprint": data.fingerprint,
                "partition": data.partition,
                "protocol": data.protocol.name,
                "clients": clients,
                **({"crowd": {"clients": len(data), "train": data.total_samples}} if is_crowd else {}),
                **({"unseen": [_describe_unseen(c) for c in data.unseen]} if data.unseen else {}),
                "classes": list(data.classes),
                "notes": list(data.notes),
                "sample": {"shape": list(data.x.shape[1:]), "dtype": str(data.x.dtype).removeprefix("torch.")},
                "preparation": data.preparation.describe(),
                **({"groups": {"name": data.groups.name, "names": list(data.groups.names)}} if data.groups else {}),
                **({"target": data.target} if data.target != "classes" else {}),
                **({"centre": data.centre, "spread": data.spread} if data.target == "number" else {}),
            },
            "model": self.model_name,
            "training": self.training.describe(),
            "demanded": dict(self.method.training),  # what of the training above the method decides, not the user
            "rounds": self.rounds,
            "participation": self.participation,
            "buffers": self.buffers if isinstance(self.buffers, str) else dict(self.buffers),
            "device": self.device,
            "eval_every": self.eval_every,
            "seed": self.seed,
            "checks": asdict(self.checks),
            "guard": None if self.guard is None else asdict(self.guard),
            **({"code": code} if (code := self._hash_code()) else {}),
            **({} if self.training.rate.is_constant else {"rates": self.training.rate.tabulate(self.rounds)}),
            **({} if self.train_scores else {"train_scores": False}),
            **({"until_flat": True} if self.until_flat else {}),
            **({} if self.loss == CROSS_ENTROPY else {"loss": str(self.loss), "score": self.loss.score}),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            **({"scored": len(self.scored)} if len(self.scored) < len(data) else {}),
        }
        return json.loads(json.dumps(found, default=str))

    def _hash_code(self) -> dict[str, str]:
        """The user's own files that the method, its schedules and the model come from, and a hash of each."""
        schedules = [function for rate in self.rates for function in rate.functions]
        return hash_own_code(self.method, *schedules) | (
            hash_model_file(self.model) if isinstance(self.model, str) else {}
        )

    @cached_property
    def digest(self) -> str:
        """A hash of all facts: equal digests mean equal settings."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """The name of the run folder, another one for other settings: `scanners-fedheal-seed0-1f2e3d4c`."""
        parts = (self.federation.name, str(self.method), f"seed{self.seed}", self.digest)
        return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.")[:60] for part in parts)


def _describe_unseen(client: Client) -> dict[str, object]:
    """What the manifest tells of a client that is held out."""
    return {"name": client.name, "domain": client.domain, "scored": len(find_scored(client))}


def check_metrics(names: Sequence[str], loss: Loss) -> tuple[str, ...]:
    """The metrics that a run is to record beside its score and its loss. One that does not exist is an error."""
    found = tuple(str(fit_to_type(name, Literal[tuple(METRICS)], "metrics")) for name in names)
    if found and loss.target == "number":
        raise EquipoiseError(
            f"Metric `{found[0]}` is for classes. With loss `{loss}` runs record r2, mae and mse: leave metrics out."
        )
    return found


def check_option(name: str, value: object) -> None:
    """Refuse a value that no run can have for this option."""
    match name, value:
        case "rounds" | "eval_every" | "eval_clients", int():
            require(value >= 1, name, "at least 1", value)
        case "participation", float() | int():
            require(0 < value <= 1, name, "above 0 and at most 1", value)
        case "device", str():
            _check_device(value)
        case "loss", str():
            parse_loss(value)
        case "rounds" | "eval_every" | "eval_clients" | "participation" | "device", None:  # the protocol's own
            pass
        case "rounds" | "eval_every" | "eval_clients" | "participation" | "device", _:
            kinds = {"participation": "a number", "device": "a text"}
            raise EquipoiseError(f"{name} must be {kinds.get(name, 'a whole number')}. Found {value!r}.")


def _check_device(device: str) -> None:
    kind = device.split(":")[0]
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in here:
        raise EquipoiseError(f"Device must be cpu, cuda or mps. Found {device!r}.")
    if not here[kind]:
        usable = ", ".join(name for name, present in here.items() if present)
        raise EquipoiseError(f"Device {device!r} is not available here. Usable: {usable}.")


def _note_overruled(method: Method, training: Training | None) -> tuple[str, ...]:
    """A note on what the user asked of the local optimizer and the method does otherwise."""
    if training is None:
        return ()
    changed = [f"{name}={value!r}" for name, value in method.training if getattr(training, name) != value]
    return (f"{method}: trains with {', '.join(changed)}, whatever the run says.",) if changed else ()


def _note_idle(method: Method, participation: float) -> tuple[str, ...]:
    """A note on a selection that has nothing to choose."""
    select = method.select
    if select.rank == 0 or participation < 1 or not select.fills_places or method.is_pooled:
        return ()
    return (f"{select.name}: all clients take part in every round. Set a participation below 1 to select some.",)


def _note_sample(data: Federation, scored: Sequence[int]) -> tuple[str, ...]:
    """A note on scores of some of the clients only."""
    if len(scored) == len(data):
        return ()
    return (
        f"Scores are estimates: {len(scored):,} of {len(data):,} clients are scored, drawn by the seed, the same ones in every "
        "round.",
    )


def _note_dropped(usual: Training, training: Training | None) -> tuple[str, ...]:
    """A note on the data set's momentum, if the optimizer that the user chose has none."""
    if training is None or not usual.momentum or has_momentum(training.optimizer):
        return ()
    rate = f" Its learning rate of {usual.lr:g} is kept." if training.lr == usual.lr else ""
    return (f"{training.optimizer} has no momentum: the data set's momentum of {usual.momentum:g} is dropped.{rate}",)


def _note_unreached(schedule: str, rounds: int) -> tuple[str, ...]:
    """A note on a schedule of the local rate of which the run does not reach the end."""
    lasts = sum(stage.rounds or 0 for stage in parse_schedule(schedule))
    return (
        (f"The schedule `{schedule}` lasts {lasts} rounds, and the run ends after {rounds}.",) if lasts > rounds else ()
    )
