"""Is everything in place? Looks at the installation, the machine and the files, and says what to do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from equipoise.data import DATASETS
from equipoise.data.catalogue import availability
from equipoise.runners import cores

NEEDED = 1 << 30  # bytes of free space below which a long run may not get through
SOON = 30 * 24 * 3600  # seconds: a certificate that ends within a month is worth a word
OPTIONAL = {
    "flwr": "real federations: pip install 'equipoise[flower]'",
    "datasets": "hub data: pip install 'equipoise[data]'",
}


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "note", "bad"]
    found: str
    advice: str = ""


def examine(out: Path, ports: Sequence[int] = (), certificates: Sequence[Path] = ()) -> list[Finding]:
    """Everything that can be looked at from here."""
    return [
        *installation(),
        machine(),
        folder_for_runs(out),
        data_folder(),
        *(port(number) for number in ports),
        *(certificate(path) for path in certificates),
    ]


def installation() -> Iterable[Finding]:
    """Python, and every package that Equipoise needs or can use."""
    fits = sys.version_info >= (3, 11)
    yield Finding(
        "Python", "ok" if fits else "bad", platform.python_version(), "" if fits else "Install 3.11 or newer."
    )
    yield Finding("equipoise", "ok", version("equipoise"))
    for line in requires("equipoise") or ():
        if "extra ==" in line:
            continue
        name = line.split(">")[0].split("<")[0].split("=")[0].split(";")[0].strip()
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "bad", "not installed", f"pip install '{line}'")
    for name, purpose in OPTIONAL.items():
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "note", "not installed, not needed here", f"For {purpose}.")


def machine() -> Finding:
    """Cores, threads, devices."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    threads = torch.get_num_threads()
    text = f"{cores()} cores, torch uses {threads} threads, {'a GPU' if gpu else 'no GPU'}"
    if threads > cores():
        return Finding("machine", "note", text, f"More threads than cores are slow: set OMP_NUM_THREADS={cores()}.")
    return Finding("machine", "ok", text)


def folder_for_runs(out: Path) -> Finding:
    """Whether runs and checkpoints can be written, and whether there is space."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not there.is_dir():
        return Finding("run folder", "bad", f"{there} is a file", "Choose another --out.")
    if not os.access(there, os.W_OK):
        return Finding("run folder", "bad", f"{there} cannot be written", "Choose another --out, or change its rights.")
    free = shutil.disk_usage(there).free
    text = f"{out}, {free / 2**30:.1f} GiB free"
    if free < NEEDED:
        return Finding("run folder", "note", text, "Long runs with checkpoints may fill the disk: free some space.")
    return Finding("run folder", "ok", text)


def data_folder() -> Finding:
    """The folder of the named data sets."""
    place = os.environ.get("EQUIPOISE_DATA")
    if not place:
        return Finding(
            "data folder", "note", "EQUIPOISE_DATA is not set",
            "Embedded and own data need none; for the papers' data sets set it to the folder with their files.",
        )  # fmt: skip
    if not Path(place).is_dir():
        return Finding(
            "data folder", "bad", f"{place} is no folder", "Set EQUIPOISE_DATA to the folder with the files."
        )
    states = {name: availability(name) for name in DATASETS}
    lacking = [name for name, state in states.items() if state not in ("here", "none needed", "")]
    text = f"{place}, {len(states) - len(lacking)} of {len(states)} data sets ready"
    if lacking:
        return Finding("data folder", "note", text, f"`equipoise datasets` says what is missing: {', '.join(lacking)}.")
    return Finding("data folder", "ok", text)


def port(number: int) -> Finding:
    """Whether a server could listen there."""
    if not 0 < number < 65536:
        return Finding(f"port {number}", "bad", "not a port", "Ports are numbers from 1 to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            advice = "Stop what listens there, or choose another port."
            return Finding(f"port {number}", "bad", f"not free: {error.strerror}", advice)
    return Finding(f"port {number}", "ok", "free")


def certificate(path: Path) -> Finding:
    """Whether a certificate can be read, and until when it is good."""
    name = f"certificate {path.name}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=str(path))
    except FileNotFoundError:
        return Finding(name, "bad", f"{path} is not there", "Check the path.")
    except (ssl.SSLError, OSError):
        return Finding(name, "bad", f"{path} is no certificate in PEM form", "Export it as PEM, from BEGIN to END.")
    ends = [str(found["notAfter"]) for found in context.get_ca_certs() if "notAfter" in found]
    if not ends:
        return Finding(
            name, "ok", "readable; a certificate of one server: its end can be seen with `openssl x509 -enddate`"
        )
    left = min(map(ssl.cert_time_to_seconds, ends)) - time.time()
    if left < 0:
        return Finding(name, "bad", f"ended {min(ends)}", "Make a new one.")
    return Finding(
        name, "note" if left < SOON else "ok", f"good for {left / 86400:.0f} days", "Renew it." * (left < SOON)
    )
