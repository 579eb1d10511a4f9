"""Times what one writes by hand in torch: a loop with one thread, or processes with one thread each."""

import sys
import time

import torch
from work import WORK, build_network, draw_data, print_result


def train(net, theta, x, y, work):
    """Local training from a flat model; the flat update."""
    torch.nn.utils.vector_to_parameters(theta, net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for index in torch.randperm(len(y)).split(work.batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach() - theta


def work_until_told(pipe, name, theta, rows):
    """A process's life: train the clients that come through the pipe, until None comes."""
    torch.set_num_threads(1)
    work = WORK[name]
    x, y = draw_data(work)
    net = build_network(work)
    while (task := pipe.recv()) is not None:
        for row, client in task:
            rows[row] = train(net, theta, x[client], y[client], work)
        pipe.send(True)


def main():
    """The rounds of the work named on the command line, in so many processes."""
    name, rounds, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    work = WORK[name]
    net = build_network(work)
    theta = torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    rows = torch.zeros(work.cohort, len(theta))
    pipes = []
    if processes > 1:
        theta.share_memory_()
        rows.share_memory_()
        context = torch.multiprocessing.get_context("spawn")
        for _ in range(processes):
            here, there = context.Pipe()
            context.Process(target=work_until_told, args=(there, name, theta, rows), daemon=True).start()
            pipes.append(here)
    else:
        torch.set_num_threads(1)
        x, y = draw_data(work)
    seconds = []
    for r in range(rounds + 1):
        start = time.perf_counter()
        chosen = torch.randperm(work.clients, generator=torch.Generator().manual_seed(r))[: work.cohort].tolist()
        if processes > 1:
            tasks = list(enumerate(chosen))
            for i, pipe in enumerate(pipes):
                pipe.send(tasks[i::processes])
            for pipe in pipes:
                pipe.recv()
        else:
            for row, client in enumerate(chosen):
                rows[row] = train(net, theta, x[client], y[client], work)
        theta += rows.mean(0)
        seconds.append(time.perf_counter() - start)
    print_result(seconds)


if __name__ == "__main__":
    main()
