"""Three sites on a real SuperLink, each with a table of its own. One is killed in the middle, and comes back.

    python examples/three_sites.py [FOLDER]

It starts a SuperLink and three SuperNodes on this machine, ends by itself after some minutes, and shows what every site got.
With a new folder its records and its report stay there.
"""

import csv
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from equipoise.data import load_federation
from equipoise.runs.reading import read
from equipoise.study.report.page import write as write_report
from loopback import Loopback, find_command

ROUNDS, TIMEOUT = 6, 25
NAMES = ("north", "east", "south")


def tables(folder: Path) -> dict[str, Path]:
    """A CSV file a site: the parts of the synthetic three-client data."""
    data = load_federation("gaussians")
    found = {}
    for name, client in zip(NAMES, data.clients, strict=True):
        found[name] = folder / f"{name}.csv"
        with found[name].open("w") as file:
            rows = csv.writer(file)
            rows.writerow([*(f"x{i}" for i in range(data.x.shape[1])), "label"])
            for position in (*client.train.tolist(), *client.test.tolist()):
                rows.writerow([*data.x[position].tolist(), data.classes[int(data.y[position])]])
    return found


def main(folder: Path) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    files = tables(folder)
    subprocess.run(
        [find_command("equipoise"), "deploy", "init", str(folder / "app"), "--data", str(files["north"]),
         "--method", "scaffold", "--sites", "3", "--rounds", str(ROUNDS), "--model", "linear",
         "--round-timeout", str(TIMEOUT), "--min-sites", "2"],
        check=True,
    )  # fmt: skip
    with Loopback(folder / "federation") as here:
        here.start_superlink()
        say("SuperLink is up")

        def site(name: str) -> None:
            here.start_supernode(name, f'site="{name}" data="{files[name]}" state="{folder / "states"}"')

        for name in NAMES:
            site(name)
        say("three SuperNodes started")
        records = None
        for line in here.run(folder / "app", seconds=ROUNDS * 4 * TIMEOUT):
            if line.strip() and "INFO" not in line:
                say(line)
            if line.startswith("Round 1,"):
                here.end("south", signal.SIGKILL)
                say("killed the SuperNode of `south` with signal 9")
            if line.startswith("Round 3,"):
                site("south")
                say("started the SuperNode of `south` again")
            if line.startswith("Records: "):
                records = Path(line.removeprefix("Records: ").strip())
        if records is None:
            sys.exit(f"The run did not end well. {here.read_log('superlink')[-2000:]}")
        rows = pq.read_table(records / "records.parquet").to_pylist()
        found = [row for row in rows if row["metric"] == "accuracy" and row["split"] == "test"]
        print("\nTest accuracy of every site after every round, as recorded:")
        for r in range(1, ROUNDS + 1):
            of = {row["client"]: row["value"] for row in found if row["round"] == r}
            print(
                f"  round {r}: " + ", ".join(f"{name} {of[name]:.3f}" if name in of else f"{name} -" for name in NAMES)
            )
    say("all processes ended")
    report = write_report([read(records)], folder / "report.html")[0]
    say(f"report: {report}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        chosen = Path(sys.argv[1]).absolute()
        chosen.mkdir(parents=True)
        main(chosen)
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
