"""The states that a site keeps on its own disk, so that a SuperNode that is started again goes on where it was.

A state belongs to a run and to a site's name, not to a node of Flower's. It is written like a checkpoint: as
safetensors and JSON with checksums, whole or not at all.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from equipoise.engine.checkpoints import PREFIX, find_saved
from equipoise.engine.folders import CheckpointError, explain_trouble, read_tensors, remove_folder, write_tensors
from equipoise.engine.states import flatten, nest
from equipoise.types import ClientState, EquipoiseError

RUNS = 3  # of a site whose states are kept; older ones are removed


def place_states(root: str, run: str, site: str) -> Path:
    """The folder of a site's states in a run. Names that come from elsewhere never become paths: their hashes do."""
    return Path(root).expanduser() / _hashed(site) / _hashed(run)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def load_state(folder: Path, run: str, site: str, rounds: int) -> ClientState | None:
    """The site's state after this many rounds of the run; None if it was not stored."""
    place = folder / f"{PREFIX}{rounds:08d}"
    if not place.exists():
        return None
    try:
        return nest(read_tensors(place, {"run": run, "site": site, "rounds": rounds}))
    except CheckpointError as error:
        raise EquipoiseError(f"The site's state cannot be used: {error} To begin anew, remove `{folder}`.") from None


def store_states(folder: Path, run: str, site: str, states: Mapping[int, ClientState]) -> None:
    """Store these states, by the number of rounds after which they hold, and remove all others of this run."""
    try:
        if not folder.exists():
            _forget(folder.parent)
            folder.mkdir(parents=True, mode=0o700)
        newest = max(states)
        for rounds, state in states.items():
            place = folder / f"{PREFIX}{rounds:08d}"
            if rounds == newest or not place.exists():
                write_tensors(place, flatten(state), {"run": run, "site": site, "rounds": rounds})
        for place in find_saved(folder):
            if int(place.name.removeprefix(PREFIX)) not in states:
                remove_folder(place)
    except (OSError, SafetensorError) as error:
        reason, advice = explain_trouble(error)
        raise EquipoiseError(
            f"The site's state cannot be kept in `{folder}`: {reason}. {advice}, or name another folder with --node-config "
            "'state=\"...\"'."
        ) from None


def _forget(runs: Path) -> None:
    """Remove the states of a site's oldest runs, to make room for a new one."""
    old = sorted(runs.glob("*"), key=lambda path: path.stat().st_mtime) if runs.exists() else []
    for place in old[: max(0, len(old) - RUNS + 1)]:
        shutil.rmtree(place, ignore_errors=True)
