"""A process that is killed at one of its file operations, as a test can repeat it for each of them in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

KILLED = 9  # the exit code of a child that was killed
WORDS = ("open", "os.", "shutil.")  # the beginnings of the events of file operations


def kill_at(number: int, folder: Path, action: Callable[[], object]) -> bool:
    """Do something in a process of its own, which dies before its file operation of this number inside the folder.

    Nothing that the process has not handed to the system is written, and nothing is tidied up. Returns whether it died:
    False means that the action needs fewer operations.
    """
    child = os.fork()
    if child == 0:
        left = [number]

        def look(event: str, arguments: tuple[object, ...]) -> None:
            if event.startswith(WORDS) and any(str(folder) in str(one) for one in arguments):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)

        sys.addaudithook(look)
        try:
            action()
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), code
    return code == KILLED
