"""What a run can keep beyond its records (option `--keep`), for plots that need updates, features or the model.

Wherever a request names a client, its local model is looked at: the one that it has after one more round, which it trains
from the final model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.engine.result import Run
from equipoise.errors import EquipoiseError
from equipoise.runs.kept import MISSING, merge_kept
from equipoise.runs.looking import (
    Train,
    apply_model,
    compute_features,
    open_next_round,
    pick_of_one_class,
    refuse_without_class_outputs,
    show_samples,
    spread_tests,
    take_local_model,
    take_model,
    take_scored_model,
)
from equipoise.runs.meant import find_client, has_layer, list_watched
from equipoise.runs.requests import Request, parse_request
from equipoise.runs.signs import find_history, measure_consistency
from equipoise.types import VIEW, VIEW_MAP
from equipoise.updates import gram

CLIENTS = 40  # the most clients whose updates or local models are compared
SAMPLES = 400  # about how many test samples are plotted
DOMAINS = 8  # the most domains of which a sample is shown
GRID = 60  # points per side of the grid on which the border between two classes is found
PIXELS = 32  # the largest width of a sample that is shown


def analyse_conflicts(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """The cosines `[m, m]` between the updates of one more round, which m clients train from the final model."""
    known = _list_known(run)
    updates = torch.cat([sent for sent in (train(client).replies.updates for client in known) if sent is not None])
    if not updates.any():
        raise EquipoiseError(f"`{run.method}` sends no updates, so that there are no conflicts to keep.")
    inner = gram(updates)
    norms = inner.diagonal().clamp_min(1e-30).sqrt()
    names = [run.task.federation.clients[client].name for client in known]
    return {"clients": names, "cosines": (inner / norms / norms[:, None]).tolist()}


def analyse_consistency(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """How consistent the signs of updates were: `signs.measure_consistency` of the layer and client of the request."""
    names, history = list_watched(run, request), find_history(run)
    if request.layer and not has_layer(run.task, request.layer):
        raise EquipoiseError(f"`{run.method}` changes the model, which then has no layer `{request.layer}`.")
    if not names:
        what = f"of layer `{request.layer}`" if request.layer else "of its model"
        raise EquipoiseError(
            f"With `{run.method}` the parameters {what} stay with the clients: they send no updates whose signs could be kept."
        )
    clients = [find_client(run, request)] if request.client else None
    found = {} if history is None else measure_consistency(run, history, names, clients)
    if not found:
        raise EquipoiseError(f"No signs were counted for --keep {request}: no such client took part in the run.")
    return found


def analyse_features(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """The singular values of the covariance of test samples' features; and these features and the mean of each class, its
    centre, in two dimensions (t-SNE)."""
    from sklearn.manifold import TSNE

    refuse_without_class_outputs(run, "features")
    positions, domains = spread_tests(run, SAMPLES)
    found = compute_features(run, take_model(run, request, train), positions)
    y = run.federation.y[positions].cpu()
    present = y.unique()
    centres = torch.stack([found[y == label].mean(0) for label in present])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Centres are placed together with the samples: the mean of scattered places could lie where no sample does.
        places = TSNE(perplexity=min(30, max(2, len(found) // 4)), random_state=0).fit_transform(
            torch.cat([found, centres]).numpy()
        )
    names, (points, middles) = run.federation.classes, (places[: len(found)], places[len(found) :])
    return {
        "singular": find_spectrum(found).tolist(),
        "points": points.astype(float).tolist(),
        "classes": [names[label] for label in y.tolist()],
        "domains": domains,
        "centres": dict(zip((names[k] for k in present.tolist()), middles.astype(float).tolist(), strict=True)),
    }


def find_spectrum(features: Tensor) -> Tensor:
    """The singular values of the covariance of features `[n, width]`, the largest first: n samples give fewer than n.

    They are found from the features themselves, because the covariance can be much larger.

    >>> find_spectrum(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])).round(decimals=3).tolist()
    [4.0, 0.0]
    """
    centred = features - features.mean(0)
    return (torch.linalg.svdvals(centred).square() / (len(features) - 1))[: len(features) - 1]


def analyse_spectrum(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """The singular values of `find_spectrum` by the local model of each client, on the same test samples of all domains."""
    refuse_without_class_outputs(run, "spectrum")
    if run.method.is_pooled:
        raise EquipoiseError(f"`{run.method}` trains one model on the data of all clients: there are no local models.")
    positions, _ = spread_tests(run, SAMPLES)
    known = _list_known(run)
    some = [run.task.federation.clients[client] for client in known]
    models = (take_local_model(run, client, train) for client in known)
    return {
        "clients": [client.name for client in some],
        "domains": [client.domain or client.name for client in some],
        "singular": [find_spectrum(compute_features(run, model, positions)).tolist() for model in models],
    }


def analyse_saliency(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """Grad-CAM of one test sample per domain, all of one class if they can be, and the samples in grey.

    Grad-CAM shows which places of the last feature map raise the logit of the sample's class. Where the model can be read
    in other ways, too (`Outputs.extra["view NAME"]`, such as F2DC's f+), each of them has its own maps.
    """
    refuse_without_class_outputs(run, "saliency")
    positions, domains = pick_of_one_class(run, DOMAINS)
    out = show_samples(run, take_model(run, request, train), positions)
    y = run.federation.y[positions].to(out.logits.device)
    if out.map is None or not out.map.requires_grad:
        raise EquipoiseError(
            f"Model `{run.settings.model_name}` shows no feature map, which `saliency` needs: use a convolutional one."
        )
    views = {name.removeprefix(VIEW_MAP): map for name, map in out.extra.items() if name.startswith(VIEW_MAP)}
    shown = run.federation.x[positions].float().mean(1)  # over channels
    shown = shown - shown.amin((1, 2), keepdim=True)
    shown = shown / shown.amax((1, 2), keepdim=True).clamp_min(1e-12)
    most = max(1, -(-shown.shape[-1] // PIXELS))
    samples = torch.nn.functional.avg_pool2d(shown, most) if most > 1 else shown
    return {
        "domains": domains,
        "classes": [run.federation.classes[label] for label in y.tolist()],
        "samples": samples.tolist(),
        "maps": compute_grad_cam(out.logits, out.map, y).tolist(),
        "views": {name: compute_grad_cam(out.extra[f"{VIEW}{name}"], map, y).tolist() for name, map in views.items()},
    }


def compute_grad_cam(logits: Tensor, map: Tensor, y: Tensor) -> Tensor:
    """Grad-CAM `[n, height, width]` of samples of the classes `y [n]`, from 0 to 1 each.

    The channels of `map [n, channels, height, width]` are added up with the mean slopes of the class's logit as weights,
    and what speaks against the class counts as zero.
    """
    chosen = logits.gather(1, y[:, None]).sum()
    (slope,) = torch.autograd.grad(chosen, map, retain_graph=True)
    found = torch.relu((slope.mean((2, 3), keepdim=True) * map).sum(1)).detach()
    return found / found.amax((1, 2), keepdim=True).clamp_min(1e-12)


def analyse_separators(run: Run, request: Request, train: Train) -> dict[str, Any]:
    """Two-dimensional test samples, and points on the model's border between the first two classes."""
    refuse_without_class_outputs(run, "separators")
    if run.federation.input_shape != (2,):
        raise EquipoiseError(f"`separators` needs samples with two numbers. Found {run.federation.input_shape}.")
    positions, domains = spread_tests(run, SAMPLES)
    x = run.federation.x[positions]
    low, high = x.min(0).values, x.max(0).values
    across, up = (torch.linspace(float(a), float(b), GRID) for a, b in zip(low, high, strict=True))
    plane = torch.cartesian_prod(across, up)
    with torch.no_grad():
        logits = apply_model(run, take_scored_model(run), plane).logits
    margin = (logits[:, 1] - logits[:, 0]).view(GRID, GRID)
    turns = ((margin[:, 1:] * margin[:, :-1]) <= 0).nonzero()
    border = [[float(across[i]), float((up[j] + up[j + 1]) / 2)] for i, j in turns.tolist()]
    turns = ((margin[1:] * margin[:-1]) <= 0).nonzero()
    border += [[float((across[i] + across[i + 1]) / 2), float(up[j])] for i, j in turns.tolist()]
    return {"points": x.tolist(), "classes": run.federation.y[positions].tolist(), "domains": domains, "border": border}


ANALYSES: dict[str, Callable[[Run, Request, Train], dict[str, Any]]] = {
    "conflicts": analyse_conflicts,
    "consistency": analyse_consistency,
    "features": analyse_features,
    "saliency": analyse_saliency,
    "separators": analyse_separators,
    "spectrum": analyse_spectrum,
}


def analyse(run: Run, request: Request, train: Train | None = None) -> dict[str, Any]:
    """What a finished run gives on a request; an error says why it gives nothing.

    `train` is the result of `open_next_round`, for those who have several requests.
    """
    return ANALYSES[request.kind](run, request, train or open_next_round(run))


def keep(run: Run, texts: Sequence[str], place: Path) -> list[str]:
    """Do what these requests ask for and keep it in the run's folder: the reasons of those that could not be done."""
    found: dict[str, dict[str, Any]] = {}
    train = open_next_round(run)  # one for all: whoever is looked at trains once
    for request in map(parse_request, texts):
        try:
            found[str(request)] = analyse(run, request, train)
        except EquipoiseError as error:
            found[str(request)] = {MISSING: str(error)}
    if found:
        merge_kept(place, found)
    return [why for one in found.values() for name, why in one.items() if name == MISSING]


def _list_known(run: Run) -> list[int]:
    """The clients that took part, at most `CLIENTS` of them."""
    return [k for k in range(len(run.task.federation)) if k in run.states][:CLIENTS]
