"""Chooses the parameters of the demo's methods on validation data: `python benchmarks/demo_parameters.py`.

One rule for all methods: of the settings in `GRIDS` the one with the highest MIN is taken. MIN is the accuracy of the
worse served domain on validation data, averaged over the last fifth of the rounds and over seeds that the demo does not
use. A setting with a run that diverges is not taken. Test data are never looked at.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from equipoise import EquipoiseError, run

SEEDS = (100, 101, 102, 103, 104)
FEDEQUILIBRIA_T = (0.3, 0.5, 0.7, 0.9)
GRIDS = {
    "fedavg": ["fedavg"],
    "fedequilibria, literal": [f"fedequilibria(t={t})" for t in FEDEQUILIBRIA_T],
    "fedequilibria, scaled": [f"fedequilibria(t={t}, fim_scale='mean')" for t in FEDEQUILIBRIA_T],
    "eagle": [f"eagle(lam={lam}, lstar='best_val')" for lam in (0.1, 0.3, 0.5, 0.7)],
    "f2dc": [f"f2dc(tau={tau}, lam1={lam1})" for tau, lam1 in product((0.06, 1.0), (0.1, 0.8))],
    "fedheal": [f"fedheal(tau={tau}, beta={beta})" for tau, beta in product((0.3, 0.5), (0.4, 0.9))],
    "fedfe": [f"fedfe(q={q})" for q in (0.1, 0.5, 1.0, 2.0)],
}


def find_validation_min(job: tuple[str, int]) -> float:
    """MIN of a run on validation data, in points, as the mean over the last fifth of its rounds; NaN if it diverges."""
    method, seed = job
    warnings.simplefilter("ignore")
    try:
        result = run(method, "clinics", seed=seed, threads=1, eval_every=4, train_scores=False)
    except EquipoiseError:
        return float("nan")
    worst = []
    for record in result.rounds:
        if record.round <= 0.8 * result.rounds[-1].round or not record.scores:
            continue
        domains = defaultdict(list)
        for score in record.scores:
            if score.metric == "accuracy" and score.split == "validation":
                domains[score.domain].append(score.value)
        worst.append(100 * min(statistics.fmean(values) for values in domains.values()))
    return statistics.fmean(worst)


def main() -> None:
    """Print MIN of every setting, and the setting that is chosen for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, default=2, help="runs side by side")
    parser.add_argument("--methods", nargs="*", choices=GRIDS, default=list(GRIDS))
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.cores) as pool:
        for name in arguments.methods:
            jobs = [(method, seed) for method in GRIDS[name] for seed in SEEDS]
            values = list(pool.map(find_validation_min, jobs))
            means = {}
            for i, method in enumerate(GRIDS[name]):
                seeds = values[i * len(SEEDS) : (i + 1) * len(SEEDS)]
                means[method] = statistics.fmean(seeds)
                print(
                    f"{method:45s} {means[method]:5.1f}  ({', '.join(f'{value:.1f}' for value in seeds)})", flush=True
                )
            finite = {method: mean for method, mean in means.items() if mean == mean}
            print(f"-> {name}: {max(finite, key=finite.__getitem__) if finite else 'none'}\n", flush=True)


if __name__ == "__main__":
    main()
