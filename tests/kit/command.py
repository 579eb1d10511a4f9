"""Runs the command line as a user does, in a process of its own; or calls it in this one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from typer.testing import CliRunner

from equipoise.cli import app

COMMAND = [sys.executable, "-c", "from equipoise.cli import main; main()"]
# PYTHONPATH, too: a checkout beside the installed one tests its own code.
PASSED_ON = ("HOME", "EQUIPOISE_CACHE", "EQUIPOISE_DATA", "PYTHONPATH")


def equipoise(*words, cwd, width=160):
    own = {name: value for name, value in os.environ.items() if name in PASSED_ON}
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, capture_output=True, text=True, timeout=300,
        env={"COLUMNS": str(width), "PATH": "", "PYTHONWARNINGS": "error", **own},
    )  # fmt: skip


def stopped(words, cwd, ready, stop):
    """A command that is stopped once something is `ready`: its exit code, and what it printed."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={"COLUMNS": "160", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and not ready():
            time.sleep(0.1)
        stop(process)
        out, err = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def invoke(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, list(words), catch_exceptions=False)
