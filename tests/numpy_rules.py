"""The server rules once more, in plain NumPy on full vectors, written from the formulas and not from the library."""

from __future__ import annotations

import itertools
import math

import numpy as np
import quadprog


def min_norm(vectors, low=None, high=None):
    """argmin ||sum w_k v_k||^2 on the simplex (within bounds, where given), by a general QP solver."""
    m = len(vectors)
    A = vectors @ vectors.T
    scale = np.trace(A) / m
    H = A / scale + (1e-13 if low is None else 1e-10) * np.eye(m)
    C = np.hstack([np.ones((m, 1)), np.eye(m)])
    b = np.concatenate([[1.0], np.zeros(m) if low is None else low])
    if high is not None:
        C, b = np.hstack([C, -np.eye(m)]), np.concatenate([b, -high])
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


def project_simplex(v):
    """By bisection on the shift, not by sorting."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(v - middle, 0).sum() > 1:
            low = middle
        else:
            high = middle
    return np.maximum(v - (low + high) / 2, 0)


def afl(rounds, theta, gamma, first, total):
    lam = np.full(total, 1 / total)
    for clients, D, reports in rounds:
        S = list(clients)
        F = np.zeros(total)
        F[S] = reports["loss"] * total / len(S)
        new = project_simplex(lam + gamma * F)
        w = (new if first else lam)[S]
        w = w / w.sum() if w.sum() > 0 else np.full(len(S), 1 / len(S))
        lam = new
        theta = theta + w @ D
        yield theta, w


def qffl(rounds, theta, q, lr):
    L = 1 / lr
    for _, D, reports in rounds:
        F = reports["loss"] + 1e-10
        h = q * F ** (q - 1) * (L**2 * (D**2).sum(1)) + L * F**q
        delta = -(F**q)[:, None] * L * D
        theta = theta - delta.sum(0) / h.sum()
        yield theta, L * F**q / h.sum()


def fedfv(rounds, theta, alpha, tau):
    H, last = {}, {}
    for t, (clients, D, reports) in enumerate(rounds):
        g = [-row for row in D]
        for c, row in zip(clients, g, strict=True):
            H[c], last[c] = row, t
        phi = sum(micg(g, reports["loss"], alpha)) / len(g)
        if t >= tau:
            for i in range(tau, 0, -1):
                c = sum((H[k] for k in H if last[k] == t - i and phi @ H[k] < 0), np.zeros_like(theta))
                if phi @ c < 0:
                    phi = phi - (phi @ c) / (c @ c) * c
        mean = sum(g) / len(g)
        theta = theta - phi / np.linalg.norm(phi) * np.linalg.norm(mean)
        yield theta, np.full(len(g), 1 / len(g))


def fedmgda_plus(rounds, theta, eps, around):
    for _, D, reports in rounds:
        units = D / np.linalg.norm(D, axis=1, keepdims=True)
        n = reports["samples"] if around == "samples" else np.ones(len(D))
        usual = n / n.sum()
        w = min_norm(units, np.maximum(usual - eps, 0), np.minimum(usual + eps, 1)) if eps else usual
        theta = theta + w @ units
        yield theta, w


def fedlf(rounds, theta, sizes, scaled):
    H, last = {}, {}
    edges = np.cumsum([0, *sizes])
    for t, (clients, D, reports) in enumerate(rounds):
        g, F = -D, reports["loss"]
        m = len(g)
        tau = len(set(H) | set(clients)) // m
        extra = [H[c] for c in sorted(H) if c not in clients and t - last[c] <= tau]
        one = np.ones(m) / np.sqrt(m)
        size = np.linalg.norm(F)
        h = (F @ one) * F / size**3 - one / size
        d = np.zeros_like(theta)
        todo = list(itertools.pairwise(edges))
        while todo:
            a, b = todo.pop(0)
            rows = [row[a:b] for row in (*g, *extra)]
            if scaled:
                mean = np.mean([np.linalg.norm(row) for row in rows[:m]])
                rows = [row * mean / np.linalg.norm(row) for row in rows]
            fair = sum(h[k] * rows[k] for k in range(m))
            if np.linalg.norm(fair) > 1e-9 * np.linalg.norm(rows):
                rows.append(fair * mean / np.linalg.norm(fair) if scaled else fair)
            rows = np.array(rows)
            d[a:b] = min_norm(rows) @ rows
            if (
                np.linalg.norm(d[a:b]) < 1e-5 * np.linalg.norm(rows) and not scaled
            ):  # join with the next, or the one before
                todo.insert(0, (a, todo.pop(0)[1]) if todo else (max(e for e in edges if e < a), b))
        for c, row in zip(clients, g, strict=True):
            H[c], last[c] = row, t
        mean_g = g.mean(0)
        theta = theta - d / np.linalg.norm(d) * np.linalg.norm(mean_g)
        yield theta


def fdse(rounds, theta, sizes, tau):
    personal = {}
    edges = np.cumsum([0, *sizes])
    for clients, D, reports in rounds:
        step = np.zeros_like(theta)
        for a, b in itertools.pairwise(edges):
            lengths = np.linalg.norm(D[:, a:b], axis=1)
            units = D[:, a:b] / lengths[:, None]
            step[a:b] = lengths.mean() * (min_norm(units) @ units)
        theta = theta + step
        P = reports["personal"]
        for i, c in enumerate(clients):
            cos = np.array([P[i] @ P[j] / np.linalg.norm(P[i]) / np.linalg.norm(P[j]) for j in range(len(P))])
            w = np.exp(cos / tau)
            personal[c] = (w / w.sum()) @ P
        yield theta, personal


def term(rounds, theta, t):
    for _, D, reports in rounds:
        w = reports["samples"] * np.exp(t * reports["loss"])
        w = w / w.sum()
        theta = theta + w @ D
        yield theta, w


def gifair(rounds, theta, strength):
    for _, D, reports in rounds:
        p, F = reports["samples"] / reports["samples"].sum(), reports["loss"]
        K = len(F)
        lam = strength * p.min() / max(K - 1, 1)
        w = np.array([p[k] + lam * sum(np.sign(F[k] - F[j]) for j in range(K)) for k in range(K)])
        theta = theta + w @ D
        yield theta, w


def scaffold_control(rounds, total):
    c = 0.0
    for _, _, reports in rounds:
        c = c + reports["control"].sum(0) / total
        yield c


def feddyn(rounds, theta, alpha, total):
    h = np.zeros_like(theta)
    for _, D, _ in rounds:
        local = theta + D
        h = h - alpha / total * sum(x - theta for x in local)
        mean = local.mean(0)
        theta = mean - h / alpha
        yield theta, mean


def momentum(rounds, theta, beta, rate, nesterov, damped):
    b = np.zeros_like(theta)
    for _, D, reports in rounds:
        p = reports["samples"] / reports["samples"].sum()
        d = (p @ D) * ((1 - beta) if damped else 1)
        b = beta * b + d
        theta = theta + rate * (d + beta * b if nesterov else b)
        yield theta, p


def adaptive(rounds, theta, rule, rate, beta1, beta2, tau, start):
    m, v = np.zeros_like(theta), np.full_like(theta, start)
    for _, D, reports in rounds:
        p = reports["samples"] / reports["samples"].sum()
        d = p @ D
        m = beta1 * m + (1 - beta1) * d
        v = {
            "adam": beta2 * v + (1 - beta2) * d**2,
            "yogi": v - (1 - beta2) * d**2 * np.sign(v - d**2),
            "adagrad": v + d**2,
        }[rule]
        theta = theta + rate * m / (np.sqrt(v) + tau)
        yield theta, p


def fednova(rounds, theta, proximal):
    for _, D, reports in rounds:
        p, a = reports["samples"] / reports["samples"].sum(), reports["normaliser"]
        length = p @ (reports["steps"] if proximal else a)
        theta = theta + length * sum(p[k] * D[k] / a[k] for k in range(len(D)))
        yield theta, length * p / a


def feddg_ga(rounds, theta, step, total, planned, released):
    a, trained, last = np.full(total, 1 / total), {}, ()
    for t, (clients, D, reports) in enumerate(rounds):
        gaps = {c: reports["loss_valid"][i] - trained[c] for i, c in enumerate(clients) if c in last}
        if gaps:
            mean = 0.0 if released else np.mean(list(gaps.values()))
            largest = max(abs(g - mean) for g in gaps.values())
            d = step * (1 - (t - 2 if released else t - 1) / planned)
            if largest > 1e-9:
                for c, g in gaps.items():
                    a[c] = min(1, max(0, a[c] + d / total * (g - mean) / largest))
                a = a / a.sum()
        trained, last = dict(zip(clients, reports["loss_valid_trained"], strict=True)), clients
        w = a[list(clients)] / a[list(clients)].sum()
        theta = theta + w @ D
        yield theta, w


def aaggff(rounds, theta, total, silo, released):
    p, past = None, []
    for t, (clients, D, reports) in enumerate(rounds, 1):
        C = len(clients) / total
        x = reports["loss"] / reports["loss"].mean()
        r = (1 - np.exp(-x)) * (1 / total if silo else C)
        if p is None:
            p = np.full(total, (1.0 if silo else C) if released else 1 / total)
        full = np.full(total, r.mean())
        for i, c in enumerate(clients):
            full[c] = (r[i] - r.mean()) / C + (0 if released and not silo else r.mean())
        g = -full / (1 + (p @ full if silo else r.mean() * p.sum()))
        past.append((g, p))
        G = sum(g for g, _ in past)
        if silo:
            beta = total / 4
            H = sum(np.outer(g, g) for g, _ in past) + (4 * np.eye(total) if released else 0)
            linear = G - (0 if released else beta * sum((g @ at) * g for g, at in past))
            bounds = np.hstack([np.ones((total, 1)), np.eye(total)])
            one = np.concatenate([[1.0], np.zeros(total)])
            p = quadprog.solve_qp(4 * np.eye(total) + beta * H, -linear, bounds, one, meq=1)[0]
        else:
            e = np.exp(-G * np.sqrt(np.log(total)) / (np.sqrt(t + 1) * (2 + C)))
            p = e / e.sum()
        w = p[list(clients)] / p[list(clients)].sum()
        theta = theta + w @ D
        yield theta, w
