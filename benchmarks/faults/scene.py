"""Small federations that train in milliseconds, and a round in which single answers can be spoilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from equipoise import Federation, Method, Protocol, Training, client_round, parse, server_round
from equipoise.engine.checkpoints import hash_model
from equipoise.engine.checks import DEPLOYMENT_CHECKS, Answer, Expected, Refusal, admit, count_declared_samples, expect
from equipoise.rounds.server import begin_server, make_broadcast
from equipoise.task import ModelSource, Task
from equipoise.types import Server, Setting

SIZES = (23, 14, 9, 31)  # training samples of the clients, in turn: no two neighbours weigh the same
CLASSES, COLUMNS = 3, 6
ROUNDS = 3  # of the run from which a scene is taken


def make_federation(clients: int, seed: int = 0, hard: int | None = None) -> Federation:
    """Clients with Gaussian classes in a few columns; the classes of the `hard` one lie elsewhere."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(CLASSES, COLUMNS, generator=draw)
    odd_centres = 2 * torch.randn(CLASSES, COLUMNS, generator=draw)

    def draw_samples(client: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % CLASSES
        return (odd_centres if client == hard else centres)[y] + torch.randn(count, COLUMNS, generator=draw), y

    train = {f"c{k}": draw_samples(k, SIZES[k % len(SIZES)]) for k in range(clients)}
    test = {f"c{k}": draw_samples(k, 60) for k in range(clients)}
    protocol = Protocol(rounds=6, training=Training(epochs=2, batch=8, lr=0.1), model="mlp(hidden=(7,))")
    return Federation.from_tensors(train, test=test, classes=CLASSES, name="small", protocol=protocol)


def make_image_federation(clients: int, seed: int = 0) -> Federation:
    """Clients with tiny images, for methods that look at feature maps."""
    draw = torch.Generator().manual_seed(seed)

    def draw_samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % CLASSES
        return torch.rand(count, 1, 8, 8, generator=draw) + 0.3 * y[:, None, None, None], y

    train = {f"c{k}": draw_samples(SIZES[k % len(SIZES)]) for k in range(clients)}
    test = {f"c{k}": draw_samples(20) for k in range(clients)}
    protocol = Protocol(rounds=6, training=Training(epochs=1, batch=8, lr=0.05), model="small_cnn(width=4)")
    return Federation.from_tensors(train, test=test, classes=CLASSES, name="images", protocol=protocol)


@dataclass(frozen=True, eq=False)
class Scene:
    """A server in its second round, which remembers the first, and the good answers of its clients."""

    method: Method
    server: Server
    setting: Setting
    wanted: Expected
    answers: tuple[Answer, ...]

    @classmethod
    def build(cls, method: str, clients: int, model: ModelSource | None = None) -> Scene:
        """Play a round, and halt in the next when everybody has answered."""
        chosen = parse(method)
        task = Task.build(chosen, make_federation(clients), model=model)
        setting, everyone = task.setting(ROUNDS, 0), list(range(clients))
        server = begin_server(chosen, task)
        states = client_round(chosen, task, everyone, make_broadcast(server, ROUNDS), {}, 0, "start")[1]
        for _ in range(2):
            before = server
            broadcast = make_broadcast(before, ROUNDS)
            singles = [client_round(chosen, task, [client], broadcast, states, 0) for client in everyone]
            wanted = expect(chosen, task, before, everyone, samples=count_declared_samples(task))
            answers = tuple(
                Answer(
                    client,
                    before.memory.round,
                    {name: value[0] for name, value in reply.reports.items()},
                    reply.updates[0],
                    {name: value[0] for name, value in reply.buffers.items()},
                )
                for client, (reply, _) in zip(everyone, singles, strict=True)
                if reply.updates is not None
            )
            replies, refused = admit(answers, wanted)
            assert replies is not None
            assert not refused
            states |= {client: state for _, kept in singles for client, state in kept.items()}
            server = server_round(chosen, before, replies, setting)[0]
        return cls(chosen, before, setting, wanted, answers)

    def finish(self, sent: Sequence[Answer]) -> tuple[str, list[Refusal]]:
        """End the round with these answers: a hash of the next model, and which answers did not count."""
        replies, refused = admit(sent, self.wanted, DEPLOYMENT_CHECKS)
        if replies is None:
            return hash_model(self.server), refused
        return hash_model(server_round(self.method, self.server, replies, self.setting)[0]), refused
