"""The processes of one run, as `torchrun` starts them: who they are, and how tensors and values travel between them.

Everything travels over Gloo between the hosts' memories, because the server's half of a round works there; clients
train on whatever device a process has. Sums over columns are gathered from all processes and added in the order of their
ranks, so that the same processes give the same bits.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Torch imports this module later by itself. Its functions then hold the group of that moment as a default value, and
# so keep the group's threads beyond the end of the program, where they abort it; imported now, they hold none.
import torch.distributed.nn.functional
from torch import Tensor

from equipoise.columns import Columns
from equipoise.errors import EquipoiseError

Value = TypeVar("Value")
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what `torchrun` tells each process
SAID = "equipoise: that a rank is lost was said"  # a counter in the processes' common store


class LostRankError(EquipoiseError):
    """Another process of the run has ended, or cannot be reached any more."""

    def __init__(self) -> None:
        super().__init__(
            "Another process of this run ended, or cannot be reached any more, so the run ends here. Start the same "
            "command with --resume (`resume=True`) to go on from the last checkpoint."
        )


@contextmanager
def _notice_loss() -> Iterator[None]:
    """Turn what Gloo says of a process that is gone into one line."""
    try:
        yield
    except RuntimeError:
        raise LostRankError from None


def _leave() -> None:
    """Part from the other processes in order: the threads of a group that is left behind can abort the program."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def is_started_by_torchrun() -> bool:
    """Whether this is one of several processes that can find each other."""
    return dist.is_initialized() or all(name in os.environ for name in NEEDED)


def pick_device(device: str, local_rank: int, count: int) -> str:
    """The device of a process: `cuda` becomes the GPU of its number on this host, of which there are `count`.

    >>> pick_device("cuda", 1, 4), pick_device("cpu", 1, 0), pick_device("cuda:0", 1, 4)
    ('cuda:1', 'cpu', 'cuda:0')
    """
    if device != "cuda":
        return device
    if local_rank >= count:
        raise EquipoiseError(
            f"Process {local_rank} of this host needs GPU {local_rank}, and there are {count}: start at most "
            f"--nproc-per-node {max(count, 1)}, or use --device cpu."
        )
    return f"cuda:{local_rank}"


def find_local_rank() -> int:
    """The number of this process on its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def count_local_ranks() -> int:
    """How many processes of the run this host has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them."""

    rank: int  # the number of this process, from 0
    size: int  # how many there are
    group: Any  # of torch.distributed, over Gloo; None: the usual one

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other processes that `torchrun` has started; or those of a process group that is there already."""
        if not is_started_by_torchrun():
            raise EquipoiseError(
                "runner='distributed' needs several processes: start the command with torchrun, for example "
                "`torchrun --nproc-per-node 4 -m equipoise run scanners --runner distributed`."
            )
        try:
            if not dist.is_initialized():
                dist.init_process_group("gloo")
                atexit.register(_leave)
            # None is the group that was just made: no reference to it may stay behind when the program ends.
            group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        except (RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise EquipoiseError(f"The processes of the run did not find each other: {why}") from None
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints what all found."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """What each process gives, in the order of their ranks, at every process."""
        found: list[Any] = [None] * self.size
        with _notice_loss():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def tell(self, value: Value) -> Value:
        """What the leader gives, at every process."""
        box: list[Any] = [value]
        with _notice_loss():
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def send(self, value: object, rank: int) -> None:
        """Send a value to another process, which must `receive` it."""
        with _notice_loss():
            dist.send_object_list([value], dst=rank, group=self.group)

    def receive(self, rank: int) -> Any:
        """A value that another process sends."""
        box: list[Any] = [None]
        with _notice_loss():
            dist.recv_object_list(box, src=rank, group=self.group)
        return box[0]

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum of what each process gives, all of one shape, added in the order of their ranks."""
        found = [torch.empty_like(partial, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with _notice_loss():
            dist.all_gather(found, partial.contiguous(), group=self.group)
        total = found[0]
        for one in found[1:]:
            total = total + one
        return total

    def join_pieces(self, piece: Tensor) -> Tensor:
        """The tensors `[..., n]` of all processes, whose `n` may differ, side by side along the last axis."""
        sizes = self.gather(piece.shape[-1])
        room = piece.new_zeros(*piece.shape[:-1], max(sizes))
        room[..., : piece.shape[-1]] = piece
        found = [torch.empty_like(room) for _ in range(self.size)]
        with _notice_loss():
            dist.all_gather(found, room, group=self.group)
        return torch.cat([one[..., :size] for one, size in zip(found, sizes, strict=True)], dim=-1)

    def exchange(
        self, rows: Mapping[int, Tensor], owners: Sequence[int], pieces: Sequence[slice], dtype: torch.dtype
    ) -> Tensor:
        """All rows `[n, width]`, with the columns `pieces[rank]` of this process.

        Row i is at process `owners[i]`, in `rows[i]`. A row's columns go where they belong directly from the row's memory.
        """
        mine = pieces[self.rank]
        found = torch.empty(len(owners), mine.stop - mine.start, dtype=dtype)
        with _notice_loss():
            work = []
            for i, owner in enumerate(owners):
                if owner != self.rank and found.shape[1]:
                    work.append(dist.irecv(found[i], src=owner, group=self.group, tag=i))
            for i, row in rows.items():
                found[i] = row[mine]
                for rank, piece in enumerate(pieces):
                    if rank != self.rank and piece.stop > piece.start:
                        work.append(dist.isend(row[piece], dst=rank, group=self.group, tag=i))
            for one in work:
                if one is not None:
                    one.wait()
        return found

    def do_together(self, work: Callable[[], Value]) -> Value:
        """What some work gives here. If it fails at any process, it is an error at all of them, which names those."""
        found, why = None, ""
        try:
            found = work()
        except EquipoiseError as error:
            why = str(error)
        failed = {rank: text for rank, text in enumerate(self.gather(why)) if text}
        if failed:
            texts = set(failed.values())
            same = len(failed) == self.size and len(texts) == 1
            named = "; ".join(f"process {rank} of {self.size}: {text}" for rank, text in failed.items())
            raise EquipoiseError(texts.pop() if same else f"The run cannot go on at all its processes: {named}")
        return found  # type: ignore[return-value]  # without an error, the work gave it

    def is_first_to_say(self) -> bool:
        """Whether this process is the first that says that another one is lost. True if nobody can know."""
        try:
            return dist.distributed_c10d._get_default_store().add(SAID, 1) == 1
        except RuntimeError:
            return True


class SplitColumns(Columns):
    """Some of the columns are here: each process has about equally many, in the order of their ranks.

    Columns beyond those of the parameters, which buffers have, belong to the last process.
    """

    def __init__(self, ranks: Ranks, size: int) -> None:
        """Divide `size` parameters among the processes."""
        self.ranks = ranks
        width = -(-size // ranks.size)
        self.bounds = [(min(r * width, size), min((r + 1) * width, size)) for r in range(ranks.size)]

    def piece(self, rank: int, total: int) -> slice:
        """The columns of a process, among `total` columns."""
        start, stop = self.bounds[rank]
        return slice(start, total if rank == self.ranks.size - 1 else stop)

    def cut(self, rows: Tensor) -> Tensor:
        """The columns of `rows [..., G]` that are here, as a view."""
        return rows[..., self.piece(self.ranks.rank, rows.shape[-1])]

    def whole(self, rows: Tensor) -> Tensor:
        """Rows with the columns of all processes."""
        return self.ranks.join_pieces(rows)

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum of the partial sums of all processes, in the order of their ranks."""
        return self.ranks.add_up(partial)

    def length(self, rows: Tensor) -> Tensor:
        """The norm over all columns, from the squares over those that are here."""
        squares = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).square()
        return self.add_up(squares).sqrt().to(rows.dtype)

    def clip(self, slices: Iterable[slice]) -> tuple[slice, ...]:
        """For each slice, what of it is here, counted from the first column that is here."""
        start, stop = self.bounds[self.ranks.rank]
        is_last = self.ranks.rank == self.ranks.size - 1

        def place(column: int) -> int:
            return max(column - start, 0) if is_last else min(max(column - start, 0), stop - start)

        return tuple(slice(place(one.start), place(one.stop)) for one in slices)
