"""One temporary file that holds the tensors of many clients, for what does not fit into memory."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor


class Store:
    """Named tensors, put into one file and got back by their place in it. The file has no name, and vanishes with the
    process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="equipoise-")  # noqa: SIM115 - it lives as long as this
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places that are not used any more, by their size

    def put(self, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        """Store tensors. Returns their place: where they begin, and how many bytes they take."""
        content = save({name: value.contiguous() for name, value in tensors.items()})
        size = len(content)
        places = self._free.get(size)
        start = places.pop() if places else self._end
        self._end = max(self._end, start + size)
        self._file.seek(start)
        self._file.write(content)
        return start, size

    def get(self, place: tuple[int, int]) -> dict[str, Tensor]:
        """The tensors at a place."""
        self._file.seek(place[0])
        return load(self._file.read(place[1]))

    def free(self, place: tuple[int, int]) -> None:
        """Let others have a place."""
        self._free.setdefault(place[1], []).append(place[0])
