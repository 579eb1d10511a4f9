"""Client states, which clients keep between rounds: in memory, and on disk once they outgrow a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping

from torch import Tensor

from equipoise.store import Store
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


class Elsewhere(ClientState):
    """Stands for the state of a client that another process of the run keeps."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank  # of that process


def is_kept(state: ClientState) -> bool:
    """Whether a client keeps something, here or elsewhere."""
    return bool(state) or isinstance(state, Elsewhere)


class ClientStates(MutableMapping[int, ClientState]):
    """States by client. When all together exceed `limit` bytes, those used least recently move to one temporary file."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._here: OrderedDict[int, ClientState] = OrderedDict()
        self._small: dict[int, ClientState] = {}  # states without tensors, of which nothing can be moved
        self._held = 0
        self._there: dict[int, tuple[int, int]] = {}  # places in the store
        self._store: Store | None = None

    def __getitem__(self, client: int) -> ClientState:
        if client in self._small:
            return self._small[client]
        if client in self._here:
            self._here.move_to_end(client)
            return self._here[client]
        place = self._there[client]
        assert self._store is not None
        return nest(self._store.get(place))

    def __setitem__(self, client: int, state: ClientState) -> None:
        self.pop(client, None)
        size = measure(state)
        if not size:
            self._small[client] = state
            return
        self._here[client] = state
        self._held += size
        while self._held > self.limit and len(self._here) > 1:
            self._spill(next(iter(self._here)))

    def __delitem__(self, client: int) -> None:
        if client in self._small:
            del self._small[client]
        elif client in self._here:
            self._held -= measure(self._here.pop(client))
        else:
            place = self._there.pop(client)
            assert self._store is not None
            self._store.free(place)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted((*self._small, *self._here, *self._there)))

    def __len__(self) -> int:
        return len(self._small) + len(self._here) + len(self._there)

    def __contains__(self, client: object) -> bool:
        return client in self._small or client in self._here or client in self._there

    @property
    def on_disk(self) -> int:
        """How many states are on disk."""
        return len(self._there)

    def _spill(self, client: int) -> None:
        self._store = self._store or Store()
        place = self._store.put(flatten(self._here[client]))
        del self[client]
        self._there[client] = place
