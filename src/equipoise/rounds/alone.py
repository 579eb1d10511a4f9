"""The training of each client alone, without the others, which a part can ask for in `Beginning.train_alone`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.local import Start, fit, pick
from equipoise.schedules import CONSTANT
from equipoise.task import Task, stack_copies
from equipoise.types import Tensors


def train_alone(
    task: Task,
    clients: Sequence[int],
    start: Start,
    seed: int,
    epochs: int,
    splits: Sequence[str],
    stop: Callable[[Tensor], bool],
) -> dict[str, Tensor]:
    """Train each client alone: its losses after every epoch, `[m, epochs]` for each of `splits` and for `"train"`.

    `stop` is given the curve of a client's training loss so far, `[epochs so far]`; when it returns True, the later
    losses of that client are NaN. All clients start from the run's first model, also those that join late, so that
    their optima can be compared. They are trained together until the last of them has stopped.
    """
    m, judged = len(clients), tuple(dict.fromkeys(("train", *splits)))
    training = replace(task.training, epochs=epochs, steps=None, schedule=CONSTANT)  # a schedule is of rounds
    held = [{split: getattr(task.federation.clients[c], split).to(task.device) for split in judged} for c in clients]
    sizes = [len(samples["train"]) for samples in held]
    steps = [-(-n // min(training.batch or n, n)) for n in sizes]  # per epoch
    curves = {split: torch.full((m, epochs), torch.nan) for split in judged}
    stopped = [False] * m

    @torch.no_grad()
    def watch(step: int, ids: Sequence[int], params: Tensors, buffers: Tensors) -> bool:
        for place, client in enumerate(ids):
            i = clients.index(client)
            epoch, rest = divmod(step + 1, steps[i])
            if stopped[i] or rest or epoch > epochs:
                continue
            for split, index in held[i].items():
                scores = task.scores(pick(params, place), pick(buffers, place), index)
                curves[split][i, epoch - 1] = scores["loss"].mean()
            stopped[i] = epoch == epochs or stop(curves["train"][i, :epoch])
        return all(stopped)

    fit(
        task, (), clients, start, params=stack_copies(task.initial_params, m),
        buffers=stack_copies(task.initial_buffers, m), round=0, rounds=1, seed=seed, training=training, purpose="alone",
        watch=watch,
    )  # fmt: skip
    return curves
