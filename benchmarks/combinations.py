"""Measures combinations of methods that papers report, on a federation: `python benchmarks/combinations.py`.

They are those of FedHEAL's Table 2 (seven host methods, alone and with AFL, q-FFL and FedHEAL), of F2DC's Table 3 (its
modules in four host methods) and of FedEquilibria's ablations. One Markdown table is printed for each: AVG, STD (ddof
0) and MIN of the domains' test accuracies in percent, mean over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from equipoise import load_federation
from equipoise.method.registry import adapt_to_data
from equipoise.methods import parse
from equipoise.study.comparison import tabulate
from equipoise.study.jobs import Job, list_jobs
from equipoise.study.workers import Failure, execute_all

HOSTS = ("fedavg", "fedprox", "scaffold", "moon", "feddyn", "fedproc", "fedproto")
PLUGINS = ("", "afl", "qffl", "fedheal")
MODULES = ("fedavg + f2dc_modules", "fpl + f2dc_modules", "fedheal + f2dc_modules", "fdse + f2dc_modules")
ABLATIONS = {
    "FedAvg": "fedavg",
    "MOO_G": "fedequilibria(t=1, moo='update')",
    "MOO_F": "fedequilibria(t=1)",
    "DIST": "fedequilibria(t=0)",
    "all": "fedequilibria",
}


def combine(*parts: str) -> str:
    """The sum of those that are not empty."""
    return " + ".join(filter(None, parts))


def measure(
    methods: Sequence[str], dataset: str, seeds: Sequence[int], rounds: int | None, workers: int | None
) -> dict[str, str]:
    """AVG / STD / MIN of every method, in percent."""
    data = load_federation(dataset)
    template = Job(dataset=dataset, rounds=rounds, eval_every=10_000)  # the last round alone is evaluated
    todo = list_jobs(list(dict.fromkeys(methods)), data, seeds, template)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = list(execute_all(todo, Path(folder), lambda _: None, workers))  # as they end, not in order
    failed = [found for found in outcomes if isinstance(found, Failure)]
    if failed:
        raise SystemExit(f"{failed[0].method}: {failed[0].why}")
    rows = tabulate([(found.method, found.by_domain) for found in outcomes]).rows
    # A run is stored under its method as it suits the data set.
    stored = {method: rows[str(adapt_to_data(parse(method), data.dataset))] for method in methods}
    return {name: " / ".join(str(row[column]) for column in ("AVG", "STD", "MIN")) for name, row in stored.items()}


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="scanners")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="instead of the protocol's")
    parser.add_argument("--workers", type=int, help="runs at a time, by default one per core")
    options = parser.parse_args()
    sums = [combine(host, plugin) for host, plugin in itertools.product(HOSTS, PLUGINS)]
    plain = [text.split(" + ")[0] for text in MODULES]
    everything = [*sums, *plain, *MODULES, *ABLATIONS.values()]
    found = measure(everything, options.dataset, range(options.seeds), options.rounds, options.workers)
    print(f"Test accuracy on {options.dataset} in percent, AVG / STD / MIN over domains, {options.seeds} seed(s).\n")
    print("| host | plain | " + " | ".join(f"+ {plugin}" for plugin in PLUGINS[1:]) + " |\n|---|---|---|---|---|")
    for host in HOSTS:
        print(f"| {host} | " + " | ".join(found[combine(host, plugin)] for plugin in PLUGINS) + " |")
    print("\n| host | plain | + f2dc_modules |\n|---|---|---|")
    for host, text in zip(plain, MODULES, strict=True):
        print(f"| {host} | {found[host]} | {found[text]} |")
    print("\n| fedequilibria | AVG / STD / MIN |\n|---|---|")
    for name, text in ABLATIONS.items():
        print(f"| {name}: `{text}` | {found[text]} |")


if __name__ == "__main__":
    main()
