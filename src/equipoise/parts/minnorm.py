"""Min-norm weights: the convex combination of some vectors that is nearest to the origin, from their Gram matrix A.

They minimise `w'Aw` over `w >= 0, sum w = 1`. MGDA, FedMGDA+, FedEquilibria, FedLF and FDSE use them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

OPTIMAL = 1e-10  # how far (Aw)_j may lie below w'Aw, relative to w'Aw
IDENTICAL = 1e-14  # squared distance, relative to the squared norms, below which two vectors count as identical


def min_norm_weights(gram: Tensor) -> Tensor:
    """The weights `[m]` with `w >= 0, sum w = 1` that minimise `w'Aw`, for `gram` A `[m, m]`.

    Identical vectors get equal weights.

    >>> min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    matrix = gram.detach().double().cpu().numpy()
    matrix = (matrix + matrix.T) / 2
    return torch.from_numpy(_solve(matrix)).to(gram.device)


def boxed_min_norm_weights(gram: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The weights `[m]` with `low <= w <= high, sum w = 1` that minimise `w'Aw`, for `gram` A `[m, m]` (FedMGDA+).

    There must be such weights: `low` must sum to at most one, and `high` to at least one.

    >>> low, high = torch.tensor([0.4, 0.4]), torch.tensor([0.6, 0.6])
    >>> boxed_min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), low, high)
    tensor([0.6000, 0.4000], dtype=torch.float64)
    """
    matrix = gram.detach().double().cpu().numpy()
    bounds = (bound.detach().double().cpu().numpy() for bound in (low, high))
    return torch.from_numpy(_active_set((matrix + matrix.T) / 2, *bounds)).to(gram.device)


def _active_set(A: Matrix, low: Vector, high: Vector) -> Vector:
    """A primal active-set method.

    It solves for the free weights, moves towards the solution until the first weight meets a bound, and frees a weight
    at a bound when the objective falls by leaving it. A small ridge makes the solution unique, so that identical
    clients get equal weights.
    """
    m = len(A)
    A = A / max(float(A.diagonal().max()), np.finfo(np.float64).tiny) + 1e-10 * np.eye(m)
    room = high - low
    w: Vector = low + room * (
        (1 - low.sum()) / max(float(room.sum()), np.finfo(np.float64).tiny)
    )  # within the bounds, and sums to one
    free = room > 1e-15
    for _ in range(50 * m + 50):
        target = _on_face(A, w, free)
        step = target - w
        with np.errstate(divide="ignore", invalid="ignore"):
            limit = np.where(step > 0, (high - w) / step, np.where(step < 0, (low - w) / step, np.inf))
        limit[~free] = np.inf
        first = int(limit.argmin())
        if limit[first] < 1:
            w = w + limit[first] * step
            w[first] = high[first] if step[first] > 0 else low[first]
            free[first] = False
            continue
        w = target
        slope = A @ w
        if not free.any():  # the sum is fixed, so weights leave their bounds in pairs
            rises, falls = ((w < high) & (room > 1e-15), (w > low) & (room > 1e-15))
            pair = int(np.where(rises, slope, np.inf).argmin()), int(np.where(falls, slope, -np.inf).argmax())
            if not (rises.any() and falls.any()) or slope[pair[1]] - slope[pair[0]] <= 1e-12:
                break
            free[list(pair)] = True
            continue
        level = slope[free].mean()
        pull = np.where(w <= low, level - slope, slope - level)  # the gain from leaving the bound
        pull[free | (room <= 1e-15)] = -np.inf
        best = int(pull.argmax())
        if pull[best] <= 1e-12:
            break
        free[best] = True
    return np.clip(w, low, high)


def _on_face(A: Matrix, w: Vector, free: NDArray[np.bool_]) -> Vector:
    """The best weights when only the free ones may change."""
    n = int(free.sum())
    if n < 2:  # the sum is fixed: a single weight cannot move
        return w
    bordered = np.zeros((n + 1, n + 1))
    bordered[:n, :n], bordered[n, :n], bordered[:n, n] = A[np.ix_(free, free)], 1.0, 1.0
    right = np.append(-A[np.ix_(free, ~free)] @ w[~free], 1 - w[~free].sum())
    result = w.copy()
    result[free] = np.linalg.solve(bordered, right)[:n]
    return result


def _solve(A: Matrix) -> Vector:
    diagonal = A.diagonal()
    if (diagonal <= 0).any():  # a zero vector is itself the nearest point
        return np.where(diagonal <= 0, 1.0, 0.0) / (diagonal <= 0).sum()
    groups = _groups_of_identical(A)
    first = np.unique(groups)
    weights = np.zeros(len(A))
    weights[first] = _solve_distinct(A[np.ix_(first, first)])
    sizes = np.bincount(groups, minlength=len(A))
    weights = (weights / np.maximum(sizes, 1))[groups]  # the weight of a group is split evenly
    # Grouping is exact for identical vectors. If vectors were grouped that differ too much, solve without groups.
    return weights if len(first) == len(A) or _is_optimal(A, weights) else _solve_distinct(A)


def _groups_of_identical(A: Matrix) -> NDArray[np.intp]:
    """For each vector, the position of the first vector that is identical to it."""
    diagonal = A.diagonal()
    distance = diagonal[:, None] + diagonal[None, :] - 2 * A
    same = distance <= IDENTICAL * np.sqrt(np.outer(diagonal, diagonal))
    np.fill_diagonal(same, True)
    return same.argmax(axis=1)


def _solve_distinct(A: Matrix) -> Vector:
    try:
        weights = _block_pivoting(A)
    except np.linalg.LinAlgError:  # linearly dependent vectors
        weights = None
    return weights if weights is not None and _is_optimal(A, weights) else _wolfe(A)


def _is_optimal(A: Matrix, w: Vector) -> bool:
    gradient = A @ w
    value = float(w @ gradient)
    slack = OPTIMAL * max(value, 0.0) + 1e-15 * float(A.diagonal().min())
    return bool((gradient >= value - slack).all() and (w >= 0).all())


def _block_pivoting(A: Matrix) -> Vector | None:
    """Principal pivoting on the complementarity problem `x >= 0, Rx - s >= 0, x'(Rx - s) = 0`.

    `R` is A scaled to a unit diagonal and `s` holds the inverse norms; then `w` is `s * x`, normalised. It exchanges
    whole blocks of violated constraints while that makes progress, and single ones otherwise (Júdice and Pires, 1994),
    so that it ends after finitely many iterations if A is positive definite. None: the limit on iterations was reached.
    """
    m = len(A)
    s = 1 / np.sqrt(A.diagonal())
    R = A * np.outer(s, s)
    s = s / s.max()
    free = np.ones(m, dtype=bool)
    fewest, patience = m + 1, 3
    for _ in range(5 * m + 50):
        x = np.zeros(m)
        if free.any():
            x[free] = _cholesky_solve(R[np.ix_(free, free)], s[free])
        rest = R @ x - s
        wrong = np.where(free, x < 0, rest < -OPTIMAL * s / 4)
        count = int(wrong.sum())
        if count == 0:
            weights: Vector = np.where(free, s * x, 0.0)
            return weights / weights.sum()
        if count < fewest:
            fewest, patience = count, 3
            free ^= wrong
        elif patience > 0:
            patience -= 1
            free ^= wrong
        else:
            last = np.flatnonzero(wrong)[-1]
            free[last] = not free[last]
    return None


def _cholesky_solve(M: Matrix, b: Vector) -> Vector:
    lower = np.linalg.cholesky(M)
    if lower.diagonal().min() < 1e-6:  # the condition number is then above 1e12
        raise np.linalg.LinAlgError("nearly singular")
    x: Vector = np.linalg.solve(lower.T, np.linalg.solve(lower, b))
    correction: Vector = np.linalg.solve(lower.T, np.linalg.solve(lower, b - M @ x))
    return x + correction


def _wolfe(A: Matrix) -> Vector:
    """Wolfe's nearest-point algorithm (1976), which also works for linearly dependent vectors."""
    A = A / A.diagonal().max()
    m = len(A)
    w = np.zeros(m)
    w[A.diagonal().argmin()] = 1.0
    for _ in range(20 * m + 100):
        gradient = A @ w
        value = float(w @ gradient)
        enter = int(gradient.argmin())
        if gradient[enter] >= value - 1e-13 * A[enter, enter] ** 0.5 * max(value, 0.0) ** 0.5 - 1e-16 or w[enter] > 0:
            break
        support = np.append(np.flatnonzero(w), enter)
        while True:
            target = _nearest_affine(A[np.ix_(support, support)])
            if (target > 0).all():
                w[:] = 0
                w[support] = target
                break
            here = w[support]
            leaving = target <= 0
            step = float(np.min(here[leaving] / np.maximum(here[leaving] - target[leaving], 1e-300)))
            here = here + min(step, 1.0) * (target - here)
            here[leaving & (here <= here[leaving].min() + 1e-15)] = 0.0
            w[:] = 0
            w[support] = np.maximum(here, 0.0)
            support = np.flatnonzero(w)
            if len(support) == 0:  # cannot happen in exact arithmetic
                raise np.linalg.LinAlgError("the active set of the min-norm problem became empty")
        w /= w.sum()
    return w


def _nearest_affine(A: Matrix) -> Vector:
    """The weights of the nearest point of the affine hull: `sum w = 1`, without `w >= 0`."""
    n = len(A)
    bordered = np.zeros((n + 1, n + 1))
    bordered[:n, :n], bordered[n, :n], bordered[:n, n] = A, 1.0, 1.0
    right = np.zeros(n + 1)
    right[n] = 1.0
    solution = np.linalg.lstsq(bordered, right, rcond=None)[0][:n]
    return np.asarray(solution / solution.sum(), dtype=np.float64)
