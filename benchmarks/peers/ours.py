"""Times Equipoise on the benchmark's work, with the runner that it chooses by itself."""

import torch
from work import Work, draw_data, print_result, read_arguments

from equipoise import Client, Federation, Protocol, Training, parse, run
from equipoise.engine.runners import choose_runner, count_cores
from equipoise.task import Task

MODELS = {"linear": "linear", "mlp": "mlp(hidden=(200, 200))", "cnn": "cnn"}


def build_federation(name: str, work: Work, rounds: int) -> Federation:
    """The work as a federation, without test data: only training counts here."""
    x, y = draw_data(work)
    places = torch.arange(work.clients * work.samples).view(work.clients, work.samples)
    return Federation(
        name,
        x.flatten(0, 1),
        y.flatten(),
        tuple(Client(f"client {k}", places[k]) for k in range(work.clients)),
        tuple("0123456789"),
        Protocol(
            rounds=rounds,
            participation=work.cohort / work.clients,
            training=Training(epochs=work.epochs, batch=work.batch, lr=work.lr),
            model=MODELS[work.model],
        ),
    )


if __name__ == "__main__":
    name, work, rounds = read_arguments()
    federation = build_federation(name, work, rounds + 1)
    # The runner is chosen as for a run of many rounds, and fewer are measured.
    method = parse("fedavg")
    chosen = choose_runner("auto", method, Task.build(method, federation), work.cohort, 1000, count_cores())
    result = run(method, federation, eval_every=10**9, runner=chosen)
    print_result([record.seconds for record in result.rounds])
