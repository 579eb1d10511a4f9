"""Checkpoints, from which an interrupted run can go on. Each is a folder such as `round-00000012` that holds a run
between two rounds; the records of all rounds so far are in a file beside it, see `record_lines.py`.

The last two are kept. A run that resumes takes the newest good one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from equipoise.engine.folders import (
    CheckpointError,
    as_json,
    explain_trouble,
    read_state,
    refuse_foreign,
    remove_folder,
    remove_leftovers,
    replace_folder,
    save_tensors,
    say_in_one_line,
    seal,
    verify,
)
from equipoise.engine.record_lines import Mark, add_records, read_records, rebuild_records, remove_records
from equipoise.engine.result import RoundRecord
from equipoise.engine.states import ClientStates
from equipoise.grammar import require
from equipoise.types import ClientState, EquipoiseError, Memory, PerClient, Server

KEPT = 2  # checkpoints of a run
PIECE = 256 << 20  # bytes of client states per file: all together may not fit into memory
FOLDER = ".checkpoints"  # for the checkpoints of all runs, below the folder of runs
PREFIX, UNUSABLE = "round-", "unusable-"


@dataclass(frozen=True)
class Checkpoints:
    """Where a run keeps checkpoints, how often it writes one, and whether it goes on from the last."""

    folder: Path | str  # for this run alone
    every: int = 1  # rounds between two checkpoints
    resume: bool = False  # go on from the newest good one; otherwise an unfinished run in the folder is an error
    pause: int | None = None  # the round after which the run pauses: resuming it gives what it would have given

    def __post_init__(self) -> None:
        require(self.every >= 1, "checkpoint every", "at least 1", self.every)
        require(self.pause is None or self.pause >= 1, "pause", "at least 1, or None", self.pause)

    def is_due(self, done: int) -> bool:
        """Whether a checkpoint is to be written after so many rounds."""
        return done % self.every == 0 or done == self.pause


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run between two rounds: all that the next round needs, and all that was found so far."""

    server: Server  # the model, and what the server remembers
    states: Mapping[int, ClientState]  # what the clients keep
    records: Sequence[RoundRecord]  # of the rounds done
    said: Mapping[str, str] = field(default_factory=dict)  # the warnings so far, by kind
    seconds: float = 0.0  # that the run has taken
    run: str = ""  # the name by which sites know the run to which their states belong

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return len(self.records)


# --------------------------------------------------------------------------- writing
def write(folder: Path, snapshot: Snapshot, facts: Mapping[str, object]) -> Path:
    """Write a checkpoint, and remove all but the last two. If that fails, those before it stay as they are."""
    place = folder / f"{PREFIX}{snapshot.round:08d}"
    try:
        remove_leftovers(folder)
        mark = add_records(folder, snapshot.records, _find_marks(folder))
        with replace_folder(place) as draft:
            _fill(draft, snapshot, facts, mark)
        for old in find_saved(folder)[:-KEPT]:
            remove_folder(old)
    except (OSError, SafetensorError) as error:
        last = find_saved(folder)
        kept = f"The last good one, of round {_round(last[-1])}, is kept." if last else "There is none before it."
        reason, advice = explain_trouble(error)
        raise EquipoiseError(f"Cannot write the checkpoint `{place}`: {reason}. {kept} {advice}, and resume.") from None
    return place


def _find_marks(folder: Path) -> list[Mark]:
    """How far the files of records count for the checkpoints that are there, oldest first."""
    marks = []
    for place in find_saved(folder):
        with suppress(CheckpointError), say_in_one_line(place):
            records = read_state(place)["records"]
            marks += [] if isinstance(records, list) else [Mark(**records)]  # an earlier version had a list there
    return marks


def _fill(draft: Path, snapshot: Snapshot, facts: Mapping[str, object], mark: Mark) -> None:
    server = snapshot.server
    tensors: dict[str, Tensor] = {}
    tree = {
        "theta": _put(server.theta, tensors),
        "buffers": _put(dict(server.buffers), tensors),
        "evaluated": None if server.evaluated is None else _put(server.evaluated, tensors),
        "parts": _put(dict(server.memory.parts), tensors),
        "shared": _put(dict(server.memory.shared), tensors),
    }
    sums = {"server.safetensors": save_tensors(tensors, draft / "server.safetensors")}
    clients = {}
    for number, (some, piece) in enumerate(_pieces(snapshot.states)):
        name = f"clients-{number:05d}.safetensors"
        clients[name] = some
        sums[name] = save_tensors(piece, draft / name)
    content = {
        "round": snapshot.round,
        "memory_round": server.memory.round,
        "facts": as_json(facts),
        "tree": tree,
        "clients": clients,
        "sums": sums,
        "records": mark._asdict(),
        "said": dict(snapshot.said),
        "seconds": snapshot.seconds,
        "run": snapshot.run,
    }
    seal(draft, content)


def _put(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as a JSON tree, in which each tensor is replaced by its number in `tensors`."""
    if isinstance(value, PerClient):
        default = None if value.default is None else _put(value.default, tensors)
        return {"rows": {str(client): _put(row, tensors) for client, row in value.items()}, "default": default}
    if isinstance(value, Mapping):
        return {"named": {name: _put(one, tensors) for name, one in value.items()}}
    assert isinstance(value, Tensor)
    name = str(len(tensors))
    tensors[name] = value.detach().cpu().clone().contiguous()  # a file cannot hold two views of one memory
    return name


def _get(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, str):
        return tensors[tree]
    if "named" in tree:
        return {name: _get(one, tensors) for name, one in tree["named"].items()}
    default = None if tree["default"] is None else tensors[tree["default"]]
    return PerClient({int(client): tensors[name] for client, name in tree["rows"].items()}, default)


def _pieces(states: Mapping[int, ClientState]) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Client states in portions of a bounded size."""
    some: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for client in states:
        some[str(client)] = _put(states[client], tensors)
        if sum(value.nbytes for value in tensors.values()) >= PIECE:
            yield some, tensors
            some, tensors = {}, {}
    if some:
        yield some, tensors


# --------------------------------------------------------------------------- reading
def find_saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())


def _round(place: Path) -> int:
    return int(place.name.removeprefix(PREFIX))


def read(place: Path, facts: Mapping[str, object] | None = None) -> Snapshot:
    """The snapshot in a checkpoint that is whole and belongs to a run with these facts. If it is not, `CheckpointError`
    says what is wrong."""
    with say_in_one_line(place):
        content = verify(place)
        if facts is not None:
            refuse_foreign(place, content["facts"], as_json(facts))
        return _rebuild(place, content)


def _rebuild(place: Path, content: Mapping[str, Any]) -> Snapshot:
    tensors = load_file(place / "server.safetensors")
    tree = content["tree"]
    memory = Memory(content["memory_round"], _get(tree["parts"], tensors), _get(tree["shared"], tensors))
    evaluated = None if tree["evaluated"] is None else tensors[tree["evaluated"]]
    server = Server(tensors[tree["theta"]], _get(tree["buffers"], tensors), memory, evaluated)
    states = ClientStates()
    for name, clients in content["clients"].items():
        piece = load_file(place / name)
        for client, state in clients.items():
            states[int(client)] = _get(state, piece)
    records = _rebuild_all_records(place, content["records"])
    return Snapshot(server, states, records, content["said"], content["seconds"], content["run"])


def _rebuild_all_records(place: Path, found: Any) -> list[RoundRecord]:
    if isinstance(found, list):  # an earlier version stored the records themselves
        return rebuild_records(found)
    mark = Mark(**found)
    records = read_records(place.parent, mark)
    if records is None:
        raise CheckpointError(f"`{place}` is corrupt: the checksum of its records in {mark.file} differs.")
    return records


def _find_latest(folder: Path, facts: Mapping[str, object]) -> tuple[Snapshot | None, list[str]]:
    """The newest good checkpoint of a run with these facts, and what was wrong with newer ones.

    When there are checkpoints and none can be used, that is an error: a run must not start over in silence.
    """
    wrong: list[str] = []
    places = find_saved(folder)
    for place in reversed(places):
        try:
            return read(place, facts), wrong
        except CheckpointError as error:
            wrong.append(str(error))
    if places:
        raise EquipoiseError(f"No checkpoint can be used. {' '.join(wrong)} To start over, remove `{folder}`.")
    return None, []


def resume_or_clear(chosen: Checkpoints, facts: Mapping[str, object], rounds: int) -> tuple[Snapshot | None, list[str]]:
    """The snapshot from which a run begins, None for its start; and notes on checkpoints that could not be used.

    A run that resumes begins at its newest good checkpoint. One that does not clears the folder of a finished run, and
    refuses that of an unfinished one.
    """
    folder = Path(chosen.folder)
    if chosen.resume:
        snapshot, wrong = _find_latest(folder, facts)
        for place in find_saved(folder)[::-1][: len(wrong)]:  # renamed: out of the way, but not lost
            place.rename(folder / f"{UNUSABLE}{place.name}-{time.time_ns()}")
        return snapshot, [f"{text} The one before it is used." for text in wrong]
    places = find_saved(folder)
    if places and _round(places[-1]) < rounds:
        raise EquipoiseError(
            f"`{folder}` holds an unfinished run, at round {_round(places[-1])}: add --resume (`resume=True`, or --run-config "
            "resume=true with Flower) to go on with it, or remove the folder to start over."
        )
    _clear(folder)
    return None, []


def discard(folder: Path) -> None:
    """Remove the checkpoints of a run that is over and stored elsewhere. Those that could not be used stay."""
    _clear(folder)
    for empty in (folder, folder.parent):
        with suppress(OSError):
            empty.rmdir()


def _clear(folder: Path) -> None:
    """Remove all checkpoints, the newest last: whenever this is cut off, those that are left can be used."""
    remove_leftovers(folder)
    for place in find_saved(folder):
        remove_folder(place)
    remove_records(folder)


def hash_model(server: Server) -> str:
    """A hash of the model: servers with equal hashes hold the same bits."""
    digest = hashlib.sha256()
    for tensor in (server.theta, *(server.buffers[name] for name in sorted(server.buffers))):
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"")
        digest.update(repr((tensor.dtype, tuple(tensor.shape), tensor.tolist() if not tensor.dim() else 0)).encode())
    return digest.hexdigest()[:16]
