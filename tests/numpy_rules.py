"""The server rules once more, in plain NumPy on full vectors, written from the formulas and not from the library."""

from __future__ import annotations

import itertools
import math

import numpy as np
import quadprog


def min_norm(vectors):
    """argmin ||sum w_k v_k||^2 on the simplex, by a general QP solver."""
    m = len(vectors)
    A = vectors @ vectors.T
    scale = np.trace(A) / m
    H = A / scale + 1e-13 * np.eye(m)
    C = np.hstack([np.ones((m, 1)), np.eye(m)])
    b = np.concatenate([[1.0], np.zeros(m)])
    return np.maximum(quadprog.solve_qp(H, np.zeros(m), C, b, meq=1)[0], 0)


def fedequilibria(rounds, theta, t=0.7, space="fisher", scale="none"):
    for _, D, reports in rounds:
        V = reports["fisher"] if space == "fisher" else D
        if scale == "l2":
            V = V / np.linalg.norm(V, axis=1, keepdims=True)
        if scale == "mean":
            V = V / V.mean(axis=1, keepdims=True)
        d = np.linalg.norm(D, axis=1)
        w = t * (min_norm(V) if t else 0) + (1 - t) * d / d.sum()
        theta = theta + w @ D
        yield theta, w


def eagle_server(rounds, theta, lam, norm, lag):
    last = {}
    for clients, D, reports in rounds:
        r = reports["gap"]
        K = len(r)
        first = 1 / math.sqrt(K) if norm == "unit" else 1.0
        old = np.array([last.get(c, first) for c in clients])
        if K == 1:
            new = np.ones(1)
        else:
            new = np.array([1 + 4 * lam / (K - 1) * sum(r[k] - r[j] for j in range(K) if j != k) for k in range(K)])
            if norm == "unit":
                new = new / np.sqrt((new**2).sum())
            if norm == "sqrtK":
                new = new * np.sqrt(K) / np.sqrt((new**2).sum())
        used = old if lag else new
        last.update(zip(clients, new, strict=True))
        theta = theta + sum(used[k] * D[k] for k in range(K)) / K
        yield theta, used / K


def domain_aware(rounds, theta, classes, domains, total, a=1.0, b=0.4):
    for _, D, reports in rounds:
        n = reports["samples"]
        d = np.array([math.sqrt(0.5 * sum((n_k / total - 1 / domains) ** 2 for _ in range(classes))) for n_k in n])
        s = 1 / (1 + np.exp(-(a * n / total - b * d)))
        w = s / s.sum()
        theta = theta + w @ D
        yield theta, w


def fedheal(rounds, theta, tau, beta, released, sizes, length=False):
    """Loops over entries; `released` follows the public code, otherwise the paper."""
    up, seen, p, dp = {}, {}, {}, {}
    for clients, D, reports in rounds:
        m, G = D.shape
        mask = np.zeros((m, G), dtype=bool)
        for i, c in enumerate(clients):
            up.setdefault(c, np.zeros(G))
            seen.setdefault(c, 0)
            rose = D[i] > 0 if released else D[i] >= 0
            if not released:
                up[c] = up[c] + rose
                seen[c] += 1
            if seen[c] == 0:
                mask[i] = True
            else:
                share = up[c] / seen[c]
                consistency = np.where(rose, share, 1 - share)
                mask[i] = consistency > tau + 1e-12 if released else consistency >= tau - 1e-12
            if released:
                up[c] = up[c] + rose
                seen[c] += 1
        masked = D * mask
        if released:
            edges = np.cumsum([0, *sizes])
            d = np.array([sum(np.linalg.norm(row[a:b]) for a, b in itertools.pairwise(edges)) for row in masked])
        else:
            d = np.linalg.norm(masked, axis=1) if length else (masked**2).sum(1)
        d = np.ones(m) if d.sum() == 0 else d
        n = reports["samples"]
        for i, c in enumerate(clients):
            if c not in p:
                p[c] = 1 / m if released else n[i] / n.sum()
                dp[c] = 0.0
            dp[c] = (1 - beta) * dp[c] + beta * d[i] / d.sum()
            p[c] = p[c] + dp[c]
        w = np.array([p[c] for c in clients])
        w = w / w.sum()
        if not released:
            for i, c in enumerate(clients):
                p[c] = w[i]
        step = np.zeros(G)
        for j in range(G):
            keepers = [i for i in range(m) if mask[i, j]]
            if keepers:
                step[j] = sum(w[i] * D[i, j] for i in keepers) / sum(w[i] for i in keepers)
        theta = theta + step
        yield theta, w


def micg(g, losses, alpha, descending=False, first=None):
    m = len(g)
    order = sorted(range(m), key=lambda k: losses[k])
    kept = order[math.ceil((m - 1) * (1 - alpha)) :] if alpha > 0 else []
    if descending:
        order = order[::-1]
    if first is not None:
        kept = order[first:]
    h = [row.copy() for row in g]
    for k in range(m):
        if k in kept:
            continue
        for j in order:
            if j != k and h[k] @ g[j] < 0:
                h[k] = h[k] - (h[k] @ g[j]) / (g[j] @ g[j]) * g[j]
    return h


def fedfe(
    rounds, theta, q, alpha, tau, beta_init, lr, total, descending=False, first=None, raw=False, rate=1.0, renorm=False
):
    L = 1 / lr
    S = 1.0 if raw else L
    H, last = {}, {}
    v = np.zeros_like(theta)
    for t, (clients, D, reports) in enumerate(rounds):
        g = [-row for row in D]
        F = reports["loss"] + 1e-10
        for c, row in zip(clients, g, strict=True):
            H[c], last[c] = row, t
        h = micg(g, F, alpha, descending, first)
        deltas = [F[k] ** q * S * h[k] for k in range(len(g))]
        y = [q * F[k] ** (q - 1) * np.sum((S * h[k]) ** 2) + L * F[k] ** q for k in range(len(g))]
        phi = sum(deltas) / sum(y)
        if t >= tau:
            for i in range(tau, 0, -1):
                c = sum((H[k] for k in H if last[k] == t - i and phi @ H[k] < 0), np.zeros_like(theta))
                if phi @ c < 0:
                    phi = phi - (phi @ c) / (c @ c) * c
        if renorm:
            phi = phi / np.linalg.norm(phi) * np.linalg.norm(np.mean(g, axis=0))
        b = beta_init * (1 - t / total) / (1 - beta_init + beta_init * (1 - t / total))
        v = b * v + phi
        theta = theta - rate * v
        yield theta, np.array([F[k] ** q * S / sum(y) for k in range(len(g))])
