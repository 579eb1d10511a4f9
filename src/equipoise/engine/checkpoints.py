"""Runs that survive. A checkpoint is a folder `round-00000012`: tensors as safetensors, the rest as JSON, all checksummed.

It is written under another name, synced and renamed, so that it is there whole or not at all; the last two are kept.
Loading takes the newest good one. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from equipoise.engine.states import ClientStates
from equipoise.grammar import require
from equipoise.rounds.evaluation import Score
from equipoise.types import ClientState, EquipoiseError, Memory, PerClient, Server

if TYPE_CHECKING:
    from equipoise.engine.loop import RoundRecord

FORMAT = 1
KEPT = 2
PIECE = 256 << 20  # bytes of client states in one file: what is spilled to disk need not fit into memory at once
STATE, LOCK, PREFIX, UNFINISHED, UNUSABLE = "state.json", "lock", "round-", ".unfinished-", "unusable-"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True)
class Checkpoints:
    """Where a run keeps checkpoints, how often it writes one, and whether it goes on from the last."""

    folder: Path | str
    every: int = 1
    resume: bool = False

    def __post_init__(self) -> None:
        require(self.every >= 1, "checkpoint every", "at least 1", self.every)


@dataclass(frozen=True, eq=False)
class Moment:
    """A run between two rounds: all that the next round needs, and all that was found so far."""

    server: Server
    states: Mapping[int, ClientState]
    records: Sequence[RoundRecord]
    said: Mapping[str, str] = field(default_factory=dict)  # warnings
    seconds: float = 0.0
    run: str = ""  # by this name sites know the run to which their states belong

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.records)


class CheckpointError(EquipoiseError):
    """A checkpoint that cannot be used, and why."""


# --------------------------------------------------------------------------- one process at a time
@contextmanager
def held(folder: Path, what: str = "checkpoints") -> Iterator[None]:
    """The folder for this process alone. A second process is refused at once; a killed one leaves nothing behind."""
    import fcntl

    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock: IO[str] = path.open("a+")
    except OSError as error:
        raise EquipoiseError(f"Cannot write {what} to `{folder}`: {error.strerror}. Choose another folder.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                raise BlockingIOError  # the one who had it has just removed it, and somebody else may hold a new one
        except OSError:
            raise EquipoiseError(
                f"Another process is at work on `{folder}`: wait for it, or choose another folder."
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is still held, so that nobody else's is removed


# --------------------------------------------------------------------------- writing
def write(folder: Path, moment: Moment, settings: Mapping[str, object]) -> Path:
    """A new checkpoint. Whatever goes wrong, those before it stay as they are."""
    place = folder / f"{PREFIX}{moment.round:08d}"
    try:
        for leftover in folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover)
        with replaced(place) as draft:
            _fill(draft, moment, settings)
        for old in saved(folder)[:-KEPT]:
            remove(old)
    except (OSError, SafetensorError) as error:
        last = saved(folder)
        kept = f"The last good one, of round {_round(last[-1])}, is kept." if last else "There is none before it."
        reason, advice = trouble(error)
        raise EquipoiseError(f"Cannot write the checkpoint `{place}`: {reason}. {kept} {advice}, and resume.") from None
    return place


@contextmanager
def replaced(place: Path) -> Iterator[Path]:
    """A folder to fill, which takes this place when it is full: there whole, or not at all."""
    draft = place.with_name(f"{UNFINISHED}{place.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        _sync(draft)
        old = place.with_name(f"{UNFINISHED}old-{place.name}")
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        draft.rename(place)
        _sync(place.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def remove(place: Path) -> None:
    """Renamed first: a folder that is half removed must not pass for a whole one."""
    shutil.rmtree(place.rename(place.with_name(f"{UNFINISHED}{place.name}")))


def trouble(error: Exception) -> tuple[str, str]:
    """Why something could not be written, and what to do."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EFBIG)
    return getattr(error, "strerror", None) or str(error), "Free some space" if full else "Mend that"


def _fill(draft: Path, moment: Moment, settings: Mapping[str, object]) -> None:
    server = moment.server
    tensors: dict[str, Tensor] = {}
    tree = {
        "theta": _put(server.theta, tensors),
        "buffers": _put(dict(server.buffers), tensors),
        "evaluated": None if server.evaluated is None else _put(server.evaluated, tensors),
        "parts": _put(dict(server.memory.parts), tensors),
        "shared": _put(dict(server.memory.shared), tensors),
    }
    sums = {"server.safetensors": _save(tensors, draft / "server.safetensors")}
    clients = {}
    for number, (some, piece) in enumerate(_pieces(moment.states)):
        name = f"clients-{number:05d}.safetensors"
        clients[name] = some
        sums[name] = _save(piece, draft / name)
    content = {
        "round": moment.round,
        "memory_round": server.memory.round,
        "settings": plain(settings),
        "tree": tree,
        "clients": clients,
        "sums": sums,
        "records": [asdict(record) for record in moment.records],
        "said": dict(moment.said),
        "seconds": moment.seconds,
        "run": moment.run,
    }
    _seal(draft, content)


def _seal(draft: Path, content: Mapping[str, object]) -> None:
    """Write what is not a tensor, with a checksum over it; the tensors' checksums are in it."""
    text = json.dumps({"format": FORMAT, "sha256": _digest(content), "content": content})
    with (draft / STATE).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(place: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Named tensors and facts about them in a folder of their own, as safe as a checkpoint is."""
    with replaced(place) as draft:
        own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        sums = {TENSORS: _save(own, draft / TENSORS)}
        _seal(draft, {"facts": dict(facts), "sums": sums})


def read_tensors(place: Path, facts: Mapping[str, object]) -> dict[str, Tensor]:
    """The tensors of a folder that is whole and has these facts; else `CheckpointError` says what is wrong."""
    with _said_in_one_line(place):
        _refuse_foreign(place, _verified(place)["facts"], plain(facts))
        return load_file(place / TENSORS)


def plain(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings as JSON has them, so that written and present ones can be compared."""
    return json.loads(json.dumps(dict(settings), default=str))


def _put(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A tree whose tensors are replaced by their numbers in `tensors`."""
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


def _save(tensors: dict[str, Tensor], path: Path) -> str:
    """Write, sync, and give the checksum."""
    save_file(tensors, path)
    _sync(path)
    return _sum(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --------------------------------------------------------------------------- reading
def saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())


def _round(place: Path) -> int:
    return int(place.name.removeprefix(PREFIX))


def read(place: Path, settings: Mapping[str, object] | None = None) -> Moment:
    """A checkpoint that is whole and belongs to a run with these settings; else `CheckpointError` says what is wrong."""
    with _said_in_one_line(place):
        content = _verified(place)
        if settings is not None:
            _refuse_foreign(place, content["settings"], plain(settings))
        return _moment(place, content)


@contextmanager
def _said_in_one_line(place: Path) -> Iterator[None]:
    """Whatever is wrong with a folder is a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"`{place}` cannot be read: {error.strerror}.") from None
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError):
        raise CheckpointError(f"`{place}` is corrupt: {STATE} is damaged.") from None


def _verified(place: Path) -> dict[str, Any]:
    """What the JSON file says, once every checksum has been found right."""
    whole = json.loads((place / STATE).read_text(encoding="utf-8"))
    content = whole["content"]
    if whole["format"] > FORMAT:
        raise CheckpointError(f"`{place}` was written by a newer Equipoise (format {whole['format']}): update.")
    if (
        set(whole) != {"format", "sha256", "content"}
        or whole["format"] != FORMAT
        or _digest(content) != whole["sha256"]
    ):
        raise CheckpointError(f"`{place}` is corrupt: the checksum of {STATE} differs.")
    for name, wanted in content["sums"].items():
        if _sum(place / name) != wanted:
            raise CheckpointError(f"`{place}` is corrupt: the checksum of {name} differs.")
    return dict(content)


def _refuse_foreign(place: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if names:
        differ = "; ".join(f"{name} {found.get(name)!r} there, {wanted.get(name)!r} here" for name in names)
        raise CheckpointError(f"`{place}` belongs to another run: {differ}.")


def _moment(place: Path, content: Mapping[str, Any]) -> Moment:
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
    records = [_record(one) for one in content["records"]]
    return Moment(server, states, records, content["said"], content["seconds"], content.get("run", ""))


def _record(one: Mapping[str, Any]) -> RoundRecord:
    from equipoise.engine.loop import Rejection, RoundRecord

    return RoundRecord(
        one["round"],
        tuple(one["clients"]),
        tuple(one["weights"]),
        {name: tuple(values) for name, values in one["figures"].items()},
        tuple(Score(**score) for score in one["scores"]),
        one["seconds"],
        tuple(Rejection(**rejection) for rejection in one["rejected"]),
        tuple(one.get("warnings", ())),  # older checkpoints have none
    )


def latest(folder: Path, settings: Mapping[str, object]) -> tuple[Moment | None, list[str]]:
    """The newest good checkpoint of a run with these settings, and what was wrong with newer ones.

    When there are checkpoints and none can be used, that is an error: a run must not start over in silence.
    """
    wrong: list[str] = []
    places = saved(folder)
    for place in reversed(places):
        try:
            return read(place, settings), wrong
        except CheckpointError as error:
            wrong.append(str(error))
    if places:
        raise EquipoiseError(f"No checkpoint can be used. {' '.join(wrong)} To start over, remove `{folder}`.")
    return None, []


def prepared(chosen: Checkpoints, settings: Mapping[str, object], rounds: int) -> tuple[Moment | None, list[str]]:
    """Where a run begins: at its last good checkpoint when it resumes. A folder with an unfinished run is not overwritten."""
    folder = Path(chosen.folder)
    if chosen.resume:
        moment, wrong = latest(folder, settings)
        for place in saved(folder)[::-1][: len(wrong)]:  # out of the way, but not lost
            place.rename(folder / f"{UNUSABLE}{place.name}-{time.time_ns()}")
        return moment, [f"{text} The one before it is used." for text in wrong]
    places = saved(folder)
    if places and _round(places[-1]) < rounds:
        raise EquipoiseError(
            f"`{folder}` holds an unfinished run, at round {_round(places[-1])}: add --resume (`resume=True`, or --run-config "
            "resume=true with Flower) to go on with it, or remove the folder to start over."
        )
    for place in places:
        shutil.rmtree(place)
    return None, []


def discard(folder: Path) -> None:
    """Without the checkpoints of a run that is over and stored elsewhere; what was unusable stays."""
    for place in saved(folder):
        shutil.rmtree(place)
    for empty in (folder, folder.parent):
        with suppress(OSError):
            empty.rmdir()


def fingerprint(server: Server) -> str:
    """A hash of a model: two servers with the same one hold the same bits."""
    digest = hashlib.sha256()
    for tensor in (server.theta, *(server.buffers[name] for name in sorted(server.buffers))):
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"")
        digest.update(repr((tensor.dtype, tuple(tensor.shape), tensor.tolist() if not tensor.dim() else 0)).encode())
    return digest.hexdigest()[:16]
