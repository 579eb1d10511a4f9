"""What a run can keep beyond its records (option `--keep`), for plots that need updates, features or the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.engine.result import Run
from equipoise.losses import CrossEntropy
from equipoise.method import Method
from equipoise.rounds.client import client_round
from equipoise.rounds.evaluation import collect_tensors
from equipoise.rounds.server import make_broadcast
from equipoise.runs.kept import MISSING, merge_kept
from equipoise.types import EquipoiseError, Outputs, Server, State
from equipoise.updates import gram

CLIENTS = 40  # the most clients whose updates are compared
SAMPLES = 400  # about how many test samples are plotted
GRID = 60  # points per side of the grid on which the border between two classes is found
PIXELS = 32  # the largest width of a sample that is shown
SNAPSHOTS = (10, 100)  # rounds after which `consistency` is kept, besides the last one


def analyse_conflicts(run: Run) -> dict[str, Any]:
    """The cosines `[m, m]` between the updates of one more round, which m clients train from the final model."""
    known = [k for k in range(len(run.task.federation)) if k in run.states][:CLIENTS]
    states = {k: run.states[k] for k in known}
    total = len(run.rounds)
    broadcast = make_broadcast(run.server, total, run.rounds[-1].lr)
    replies, _ = client_round(run.method, run.task, known, broadcast, states, run.seed)
    if replies.updates is None or not replies.updates.any():
        raise EquipoiseError(f"`{run.method}` sends no updates, so that there are no conflicts to keep.")
    inner = gram(replies.updates)
    norms = inner.diagonal().clamp_min(1e-30).sqrt()
    names = [run.task.federation.clients[k].name for k in replies.clients]
    return {"clients": names, "cosines": (inner / norms / norms[:, None]).tolist()}


def count_directions(method: Method, server: Server) -> list[float]:
    """How consistent the signs of updates are: the shares of `Shape.measure_consistency` in 20 bins over [0.5, 1]."""
    for part in method.shape:
        shares = part.measure_consistency(State(server.memory.parts.get(part.key, {})))
        if shares is not None:
            counts = torch.histc(shares, 20, 0.5, 1.0)
            return (counts / counts.sum()).tolist()
    raise EquipoiseError(f"`{method}` keeps no history of directions: keep `consistency` of a run with fedheal.")


def analyse_consistency(run: Run) -> dict[str, Any]:
    """The result of `count_directions` after the last round. `keep_in_passing` adds those of earlier rounds."""
    return {str(len(run.rounds)): count_directions(run.method, run.server)}


def _refuse_without_class_outputs(run: Run, kind: str) -> None:
    if not isinstance(run.task.loss, CrossEntropy):
        raise EquipoiseError(f"`{kind}` needs one output of the model per class. Loss `{run.task.loss}` has another.")


def analyse_features(run: Run) -> dict[str, Any]:
    """The singular values of the covariance of test samples' features, and the features in two dimensions (t-SNE)."""
    from sklearn.manifold import TSNE

    _refuse_without_class_outputs(run, "features")
    positions, domains = _some_tests(run, SAMPLES)
    with torch.no_grad():
        found = _outputs(run, positions).features.double()
    values = torch.linalg.svdvals(torch.cov(found.T))[: len(found) - 1]  # n samples give a rank below n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = TSNE(perplexity=min(30, max(2, len(found) // 4)), random_state=0).fit_transform(found.numpy())
    names = [run.federation.classes[i] for i in run.federation.y[positions].tolist()]
    return {"singular": values.tolist(), "points": places.astype(float).tolist(), "classes": names, "domains": domains}


def analyse_saliency(run: Run) -> dict[str, Any]:
    """Grad-CAM of one test sample per domain, and the sample in grey.

    Grad-CAM shows which places of the last feature map raise the logit of the sample's class.
    """
    _refuse_without_class_outputs(run, "saliency")
    positions, domains = _some_tests(run, len(run.federation.domains))
    out = _outputs(run, positions)
    if out.map is None or not out.map.requires_grad:
        raise EquipoiseError(
            f"Model `{run.settings.model_name}` shows no feature map, which `saliency` needs: use a convolutional one."
        )
    chosen = out.logits.gather(1, run.federation.y[positions][:, None]).sum()
    (slope,) = torch.autograd.grad(chosen, out.map)
    maps = torch.relu((slope.mean((2, 3), keepdim=True) * out.map).sum(1)).detach()
    maps = maps / maps.amax((1, 2), keepdim=True).clamp_min(1e-12)
    shown = run.federation.x[positions].float().mean(1)  # over channels
    shown = shown - shown.amin((1, 2), keepdim=True)
    shown = shown / shown.amax((1, 2), keepdim=True).clamp_min(1e-12)
    most = max(1, -(-shown.shape[-1] // PIXELS))
    samples = torch.nn.functional.avg_pool2d(shown, most) if most > 1 else shown
    return {"domains": domains, "maps": maps.tolist(), "samples": samples.tolist()}


def analyse_separators(run: Run) -> dict[str, Any]:
    """Two-dimensional test samples, and points on the model's border between the first two classes."""
    _refuse_without_class_outputs(run, "separators")
    if run.federation.input_shape != (2,):
        raise EquipoiseError(f"`separators` needs samples with two numbers. Found {run.federation.input_shape}.")
    positions, domains = _some_tests(run, SAMPLES)
    x = run.federation.x[positions]
    low, high = x.min(0).values, x.max(0).values
    across, up = (torch.linspace(float(a), float(b), GRID) for a, b in zip(low, high, strict=True))
    plane = torch.cartesian_prod(across, up)
    with torch.no_grad():
        logits = _apply(run, plane).logits
    margin = (logits[:, 1] - logits[:, 0]).view(GRID, GRID)
    turns = ((margin[:, 1:] * margin[:, :-1]) <= 0).nonzero()
    border = [[float(across[i]), float((up[j] + up[j + 1]) / 2)] for i, j in turns.tolist()]
    turns = ((margin[1:] * margin[:-1]) <= 0).nonzero()
    border += [[float((across[i] + across[i + 1]) / 2), float(up[j])] for i, j in turns.tolist()]
    return {"points": x.tolist(), "classes": run.federation.y[positions].tolist(), "domains": domains, "border": border}


ANALYSES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "conflicts": analyse_conflicts,
    "consistency": analyse_consistency,
    "features": analyse_features,
    "saliency": analyse_saliency,
    "separators": analyse_separators,
}


def keep_in_passing(kinds: Sequence[str], method: Method, server: Server, place: Path) -> None:
    """Keep what cannot be computed any more when the run is over. It must be called after every round."""
    if "consistency" in kinds and server.memory.round in SNAPSHOTS:
        with suppress(EquipoiseError):  # `keep` gives the reason at the end of the run
            merge_kept(place, {"consistency": {str(server.memory.round): count_directions(method, server)}})


def keep(run: Run, kinds: Sequence[str], place: Path) -> list[str]:
    """Do these analyses and keep them in the run's folder: the reasons of those that could not be done."""
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        try:
            found[kind] = ANALYSES[kind](run)
        except EquipoiseError as error:
            found[kind] = {MISSING: str(error)}
    if kinds:
        merge_kept(place, found)
    return [why for one in found.values() for name, why in one.items() if name == MISSING]


def _some_tests(run: Run, most: int) -> tuple[Tensor, list[str]]:
    """The positions of about `most` test samples, equally many of each domain, and their domains.

    They are those of the first client of each domain.
    """
    data = run.federation
    each = max(1, most // len(data.domains))
    # In reversed order, so that of several clients of a domain the first one is kept.
    tests = {c.domain or c.name: c.test for c in reversed(data.clients) if len(c.test)}
    # Evenly spaced over the test set, so that all classes appear even if it is sorted by class.
    spread = {d: torch.linspace(0, len(test) - 1, min(each, len(test))).long() for d, test in tests.items()}
    parts = {domain: tests[domain][spread[domain]] for domain in data.domains if domain in tests}
    return torch.cat(list(parts.values())), [domain for domain, part in parts.items() for _ in part]


def _outputs(run: Run, positions: Tensor) -> Outputs:
    """The outputs of the scored model for the samples at these positions."""
    return _apply(run, run.federation.preparation.evaluation(run.federation.x[positions]))


def _apply(run: Run, x: Tensor) -> Outputs:
    """The outputs of the scored model for prepared samples, for autograd. Clients' own tensors are averaged."""
    tensors = collect_tensors(run.task, run.server, run.states, range(len(run.task.federation)))
    params = {name: tensors[name].detach().clone().requires_grad_() for name in run.task.initial_params}
    buffers = {name: tensors[name] for name in run.task.initial_buffers}
    return run.task.apply(params, buffers, x.to(run.task.device, run.task.federation.example().dtype))
