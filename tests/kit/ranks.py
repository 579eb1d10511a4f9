"""Several processes as `torchrun` starts them: how tests start them, and the scripts that they run.

This file is such a script, too: `torchrun ... tests/kit/ranks.py TASK FOLDER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from kit import NormNet, blobs, in_double, pictures, quiet
from kit.own_parts import KeepsRows, PulledBySpread, SharesSpread
from kit.rows import MORE, ROWS, needs_groups, needs_images

SIZES = (23, 14, 9, 31, 17, 12, 28, 11)  # training samples of the clients
PICTURES = (13, 10, 6, 9, 8, 7, 5, 11)


# --------------------------------------------------------------------------- how they are started
def torchrun(count, *words, cwd, env=None, options=("--standalone",), start=()):
    """Start `count` processes of one program, and wait for them: the exit code, and what they printed."""
    launch = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(count)]
    process = subprocess.run(
        [*start, *launch, *words], cwd=cwd, capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **(env or {})},
    )  # fmt: skip
    return process.returncode, process.stdout, process.stderr


def run_task(task, count, folder, env=None):
    """Run one of the scripts below at `count` processes, and return what it found."""
    code, out, err = torchrun(count, __file__, task, str(folder), cwd=folder, env=env)
    assert code == 0, out + err
    return json.loads((folder / f"{task}.json").read_text())


# --------------------------------------------------------------------------- what they run
def every_method(folder):
    """Methods in float64 against `inline`, two rounds: for each, where the two differ."""
    torch.set_default_dtype(torch.float64)
    texts = os.environ["EQUIPOISE_TEST_ROWS"].split(";") if "EQUIPOISE_TEST_ROWS" in os.environ else [*ROWS, *MORE]
    found = {}
    for text in texts:
        images = needs_images(text)
        data = in_double(pictures(PICTURES) if images else blobs(SIZES, grouped=needs_groups(text)))
        models, shares = (None,) if images else (None, NormNet), (0.5,) if "candidates" in text else (1.0, 0.5)
        if "EQUIPOISE_TEST_ONCE" in os.environ:  # with buffers and absent clients, where there can be some
            models, shares = models[-1:], shares[-1:]
        for model in models:
            for participation in shares:
                options = {"rounds": 2, "participation": participation, "model": model}
                found[f"{text}, {participation}{', batch norm' if model else ''}"] = compare(text, data, options)
    return found


def own_part(folder):
    """A method whose parts do not say that they work by columns."""
    torch.set_default_dtype(torch.float64)
    from equipoise import Method

    method = Method(terms=(PulledBySpread(),), step=(KeepsRows(),), share=(SharesSpread(),))
    assert not method.works_by_columns
    return compare(method, in_double(blobs(SIZES)), {"rounds": 3, "participation": 0.5})


def guarded(folder):
    """With a guard and with checks of lengths, which look at single updates and at reports."""
    from equipoise import Checks, Guard

    torch.set_default_dtype(torch.float64)
    found = {}
    for text in ("fedequilibria", "scaffold", "fedavg", "eagle(lstar_epochs=4)"):
        for name, options in {
            "guard": {"guard": Guard(length=1.0, clip=1.0)},
            "checks": {"checks": Checks(norm=1.3)},
        }.items():
            found[f"{text}, {name}"] = compare(text, in_double(blobs(SIZES)), {"rounds": 2, **options})
    return found


def same_bits(folder):
    """The model's bits after some rounds of several methods."""
    from equipoise.engine.checkpoints import hash_model

    return [
        hash_model(quiet(text, blobs(SIZES), runner="distributed", rounds=3, participation=0.5).server)
        for text in ("fedavg", "fedheal", "fedequilibria", "scaffold", "ditto")
    ]


def signs(folder):
    """How consistent the signs of updates are, counted by several processes and by one."""
    from equipoise.engine.settings import Settings
    from equipoise.engine.simulation import prepare_simulation, simulate
    from equipoise.runs.analysis import analyse
    from equipoise.runs.meant import watch
    from equipoise.runs.requests import parse_request

    torch.set_default_dtype(torch.float64)
    request = parse_request("consistency")

    def count(text, runner):
        settings = Settings.of(text, in_double(blobs(SIZES)), runner=runner, rounds=3, participation=0.5)
        run = simulate(watch(prepare_simulation(settings), [str(request)]))
        return analyse(run, request) if LEADS or runner == "inline" else {}

    return {text: [count(text, "distributed"), count(text, "inline")] for text in ("fedavg", "fedheal", "scaffold")}


def spoilt(folder):
    """A client whose update is not finite does not count, at any process, whether rows or sums travel."""
    import equipoise.engine.runners.in_process as module
    from equipoise import Checks

    train = module.client_round

    def spoil(method, task, clients, *rest):
        replies, kept = train(method, task, clients, *rest)
        for i, client in enumerate(replies.clients):
            if client == 3 and replies.updates is not None:
                replies.updates[i, -1] = torch.nan  # in a column of the last process only
        return replies, kept

    module.client_round = spoil
    found = {}
    for text in ("fedavg", "fedheal"):
        result = quiet(text, blobs(SIZES), runner="distributed", rounds=2, checks=Checks(norm=None, loss=None))
        found[text] = [[one.client for one in record.rejected] for record in result.rounds]
        assert bool(torch.isfinite(result.server.theta).all())
    return found


def leaving(folder):
    """How many references to the processes' group there are besides this one, when they have parted."""
    import torch.distributed as dist

    from equipoise.engine import ranks

    quiet("moon", blobs(SIZES), runner="distributed", rounds=1)  # computed by vmap, which imports more of torch
    group = dist.group.WORLD
    ranks._leave()
    return sys.getrefcount(group) - 2


BROKEN_OFF = ("fedheal(variant='released')", "scaffold", "ditto", "fedfe(tau=3)", "fedadam")


def _half(folder, text, resume, **options):
    from equipoise import Checkpoints

    torch.set_default_dtype(torch.float64)
    place = Checkpoints(folder / text.partition("(")[0], every=2, resume=resume)
    return quiet(
        text, in_double(blobs(SIZES)), model=NormNet, rounds=4, participation=0.5, runner="distributed", checkpoint=place,
        **options,
    )  # fmt: skip


def first_half(folder):
    """Runs that are given up after their second round, when a checkpoint has been written."""
    import equipoise.engine.loop as module

    class EnoughError(Exception):
        pass

    play = module._Loop.play

    def stop(loop):
        if len(loop.records) == 2:
            raise EnoughError
        return play(loop)

    module._Loop.play = stop
    for text in BROKEN_OFF:
        try:
            _half(folder, text, resume=False)
        except EnoughError:
            continue
        raise AssertionError("it was not given up")
    return "written"


def second_half(folder):
    """The same runs, which go on; and where they differ from `inline`."""
    found = {}
    for text in BROKEN_OFF:
        spread = _half(folder, text, resume=True)
        options = {"model": NormNet, "rounds": 4, "participation": 0.5}
        found[text] = differ(quiet(text, in_double(blobs(SIZES)), runner="inline", **options), spread) if LEADS else []
    return found


def compare(method, data, options):
    """Where a run over several processes differs from one in a single process; nothing at processes that do not lead."""
    try:
        spread = quiet(method, data, runner="distributed", **options)
        return differ(quiet(method, data, runner="inline", **options), spread) if LEADS else []
    except Exception:
        return [traceback.format_exc()]


def differ(a, b):
    """Where two runs differ by more than 1e-6, in words."""
    found = []

    def look(name, x, y):
        x, y = (torch.as_tensor(value, dtype=torch.float64) for value in (x, y))
        # The sign of an entry that moved by nothing but rounding may differ, and so FedHEAL's count of it.
        tolerance = 1.0 if "consistency_mask up" in name else 1e-6
        if x.shape != y.shape:
            found.append(f"{name}: {tuple(x.shape)} and {tuple(y.shape)}")
        elif not torch.allclose(x, y, rtol=1e-6, atol=tolerance, equal_nan=True):
            found.append(f"{name} by {float((x - y).abs().max()):.2g}")

    def rows_of(value):
        return dict(value.items()) if hasattr(value, "items") else {"": value}

    def look_into(name, x, y):
        if isinstance(x, torch.Tensor):
            look(name, x, y)
        elif rows_of(x).keys() != rows_of(y).keys():
            found.append(f"{name}: {sorted(map(str, x))} and {sorted(map(str, y))}")
        else:
            for key, value in rows_of(x).items():
                look_into(f"{name} {key}", value, rows_of(y)[key])

    look("theta", a.server.theta, b.server.theta)
    look_into("buffers", a.server.buffers, b.server.buffers)
    look_into("memory", a.server.memory.parts, b.server.memory.parts)
    look_into("shared", a.server.memory.shared, b.server.memory.shared)
    look_into("states", a.states, b.states)
    for x, y in zip(a.rounds, b.rounds, strict=True):
        if x.clients != y.clients or [r.client for r in x.rejected] != [r.client for r in y.rejected]:
            found.append(f"clients of round {x.round}")
            continue
        if a.method.merge.uses_weights:  # otherwise a tensor of few entries has one direction and many such weights
            look(f"weights of round {x.round}", x.weights, y.weights)
        if x.figures.keys() != y.figures.keys():
            found.append(f"the figures of round {x.round}: {sorted(x.figures)} and {sorted(y.figures)}")
        else:
            for name in x.figures:
                look(f"`{name}` of round {x.round}", x.figures[name], y.figures[name])
        names = [[(score.client, score.split, score.metric) for score in one.scores] for one in (x, y)]
        if names[0] != names[1]:
            found.append(f"the order of the scores of round {x.round}")
        else:
            losses = [[score.value for score in one.scores if "loss" in score.metric] for one in (x, y)]
            look(f"losses of round {x.round}", *losses)
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    LEADS = os.environ["RANK"] == "0"
    task, folder = sys.argv[1], Path(sys.argv[2])
    result = globals()[task](folder)
    if LEADS:
        (folder / f"{task}.json").write_text(json.dumps(result))
