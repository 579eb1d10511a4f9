"""Client states, which clients keep between rounds: in memory, and on disk once they outgrow a limit."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from equipoise.types import ClientState

LIMIT = 2 << 30  # bytes of states in memory
SEPARATOR = "|"  # between the key of a part and the name of its tensor, neither of which contains it


def flatten(state: ClientState) -> dict[str, Tensor]:
    """A client's state as one level of named tensors."""
    return {
        f"{key}{SEPARATOR}{name}": value.contiguous() for key, part in state.items() for name, value in part.items()
    }


def nest(tensors: dict[str, Tensor]) -> ClientState:
    """The inverse of `flatten`."""
    state: ClientState = {}
    for path, value in tensors.items():
        key, _, name = path.partition(SEPARATOR)
        state.setdefault(key, {})[name] = value
    return state


def measure(state: ClientState) -> int:
    """The size of a client's state in bytes."""
    return sum(value.numel() * value.element_size() for part in state.values() for value in part.values())


class ClientStates(MutableMapping[int, ClientState]):
    """States by client. When all together exceed `limit` bytes, those used least recently move to a temporary
    folder."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._here: OrderedDict[int, ClientState] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._there: dict[int, Path] = {}
        self._folder: Path | None = None

    def __getitem__(self, client: int) -> ClientState:
        if client in self._here:
            self._here.move_to_end(client)
            return self._here[client]
        return nest(load_file(self._there[client]))

    def __setitem__(self, client: int, state: ClientState) -> None:
        self.pop(client, None)
        self._here[client] = state
        self._sizes[client] = measure(state)
        self._held += self._sizes[client]
        while self._held > self.limit and len(self._here) > 1:
            self._spill(next(iter(self._here)))

    def __delitem__(self, client: int) -> None:
        if client in self._here:
            del self._here[client]
            self._held -= self._sizes.pop(client)
        else:
            self._there.pop(client).unlink()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted((*self._here, *self._there)))

    def __len__(self) -> int:
        return len(self._here) + len(self._there)

    def __contains__(self, client: object) -> bool:
        return client in self._here or client in self._there

    @property
    def on_disk(self) -> int:
        """How many states are on disk."""
        return len(self._there)

    def _spill(self, client: int) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="equipoise-states-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / f"{client}.safetensors"
        save_file(flatten(self._here[client]), path)
        del self[client]
        self._there[client] = path
