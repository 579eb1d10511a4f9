"""A runner with worker processes of one thread each, so that the cores work on different clients.

The workers live as long as the run. The model and the data reach them once, at the start. In each round they read the
global model from shared memory and write their clients' updates into shared rows, so that only small values travel
through pipes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from equipoise.engine.runners.dealing import count_samples_of_round, deal
from equipoise.engine.runners.in_process import Errand, run_in_process
from equipoise.method import Method
from equipoise.task import Task
from equipoise.types import Broadcast, ClientState, EquipoiseError, PerClient, Replies


def is_shippable(method: Method, task: Task) -> bool:
    """Whether a new process can import every class that the method and the model are made of."""
    modules = (module for network in task.modules.values() for module in network.modules())
    return all(type(thing).__module__ != "__main__" for thing in (*method.parts, *modules))


class Workers:
    """A runner with worker processes, which live until it is closed."""

    def __init__(self, method: Method, task: Task, cohort: int, count: int, stacked: int, sums: bool) -> None:
        """Start `count` workers, for at most `cohort` clients per round, up to `stacked` of them at a time in each
        worker.

        With `sums` only the weighted sum of the updates is returned.
        """
        self.task = task
        dtype = next(iter(task.initial_params.values())).dtype
        self.theta = _shared(task.layout.size, dtype=dtype)
        # A row per client; or, where the sum is enough, a row per worker.
        self.rows = _shared(min(count, cohort) if sums else cohort, task.layout.size, dtype=dtype)
        self.sums = sums
        context = torch.multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.workers = []
        with hide_main():
            for number in range(min(count, cohort)):
                here, there = context.Pipe()
                worker = context.Process(target=_work, args=(there, number), daemon=True)
                worker.start()
                there.close()
                self.pipes.append(here)
                self.workers.append(worker)
        for pipe in self.pipes:  # not with `start`, which would wait for ever for a worker that is gone already
            with suppress(ConnectionError):  # that shows when its first answer is read
                pipe.send((method, task, self.theta, self.rows, stacked, sums))

    def __call__(self, errand: Errand) -> tuple[Replies, dict[int, ClientState]]:
        """Do an errand. The updates in the replies are rows of shared memory, which the next round overwrites."""
        self.theta.copy_(errand.broadcast.theta)
        costs = {client: count_samples_of_round(self.task, client) for client in errand.clients}
        shares = deal(errand.clients, costs, len(self.pipes))
        place = {client: row for row, client in enumerate(errand.clients)}
        for pipe, share in zip(self.pipes, shares, strict=True):
            if share:
                told = _told(errand.broadcast, share)
                mine = {client: _packed(errand.states.get(client, {})) for client in share}
                with suppress(ConnectionError):  # that a worker is gone shows when its answer is read
                    pipe.send((share, [place[c] for c in share], told, mine, errand.seed, errand.phase))
        parts: list[Replies] = []
        kept: dict[int, ClientState] = {}
        answers = [(share, self._answer(number)) for number, share in enumerate(shares) if share]
        for share, answer in answers:  # all have been read: an error leaves none in a pipe for the next round
            if isinstance(answer, BaseException):
                raise answer
            reports, buffers, after = answer
            parts.append(Replies(tuple(share), _unpacked(reports), None, _unpacked(buffers)))
            kept |= {client: _unpacked(state) for client, state in after.items()}
        replies = Replies.join(parts)
        if errand.phase != "train":
            return replies, kept
        if self.sums:
            busy = [number for number, share in enumerate(shares) if share]
            return replace(replies, total=self.rows[busy].sum(0)), kept
        return replace(replies, updates=self.rows[: len(errand.clients)], is_lent=True), kept

    def _answer(self, number: int) -> Any:
        try:
            return self.pipes[number].recv()
        except (EOFError, ConnectionError):
            self.workers[number].join(timeout=1)
            code = self.workers[number].exitcode
            return EquipoiseError(
                f"Worker process {number} ended (exit code {code}). Out of memory? Try runner='inline'."
            )

    def close(self) -> None:
        """End the workers."""
        for pipe in self.pipes:
            pipe.close()  # a worker that finds its pipe closed ends by itself
        for worker in self.workers:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.terminate()


def _shared(*shape: int, dtype: torch.dtype) -> Tensor:
    tensor = torch.zeros(*shape, dtype=dtype)
    tensor.share_memory_()
    return tensor


def _work(pipe: Connection, number: int) -> None:
    """What a worker process does: errands, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and closes the pipe
    torch.set_num_threads(1)
    try:
        method, task, theta, rows, stacked, sums = pipe.recv()
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
    except Exception as error:  # the parent raises it when it asks for the first answer
        pipe.send(EquipoiseError(f"Worker process {number} cannot begin: {type(error).__name__}: {error}"))
        return
    torch.set_default_dtype(theta.dtype)
    compute = run_in_process(method, task, stacked, sums)
    while True:
        try:
            clients, places, (buffers, shared, *time), states, seed, phase = pipe.recv()
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        answer: Any
        try:
            broadcast = Broadcast(theta, _unpacked(buffers), _unpacked(shared), *time)
            mine = {client: _unpacked(state) for client, state in states.items()}
            replies, kept = compute(Errand(clients, broadcast, mine, seed, phase))
            if replies.updates is not None:
                rows[places] = replies.updates
            if replies.total is not None:
                rows[number] = replies.total
            after = {client: _packed(state) for client, state in kept.items()}
            answer = (_packed(replies.reports), _packed(replies.buffers), after)
        except Exception as error:  # the parent raises it
            answer = error
        try:
            pipe.send(answer)
        except BrokenPipeError:  # the parent is gone
            return


def _told(broadcast: Broadcast, clients: Sequence[int]) -> tuple[Any, Any, int, int, float | None]:
    """The broadcast without the model, and with these clients' rows only of what each client has for itself."""
    shared = {
        name: PerClient({c: value[c] for c in clients}) if isinstance(value, PerClient) else value
        for name, value in broadcast.shared.items()
    }
    return _packed(broadcast.buffers), _packed(shared), broadcast.round, broadcast.rounds, broadcast.lr


def _packed(tree: Any) -> Any:
    """Tensors as arrays, which need no file handle each to travel through a pipe."""
    if isinstance(tree, PerClient):
        return PerClient, {client: row.numpy() for client, row in tree.items()}
    if isinstance(tree, dict):
        return {key: _packed(value) for key, value in tree.items()}
    return tree.numpy() if isinstance(tree, Tensor) else tree


def _unpacked(tree: Any) -> Any:
    if isinstance(tree, tuple) and tree and tree[0] is PerClient:
        return PerClient({client: torch.from_numpy(row) for client, row in tree[1].items()})
    if isinstance(tree, dict):
        return {key: _unpacked(value) for key, value in tree.items()}
    return torch.from_numpy(np.asarray(tree)) if isinstance(tree, (np.ndarray, np.generic)) else tree


@contextmanager
def hide_main() -> Iterator[None]:
    """In this block, new processes do not run the user's script again: what they need comes from modules."""
    main = vars(sys.modules["__main__"])
    hidden = {name: main.pop(name, None) for name in ("__file__", "__spec__")}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update({name: value for name, value in hidden.items() if value is not None})
