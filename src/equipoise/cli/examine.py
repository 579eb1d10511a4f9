"""The checks behind `equipoise doctor`. Each looks at one thing, and says what it found and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from packaging.requirements import Requirement

from equipoise.data import DATASETS
from equipoise.data.catalogue import say_availability
from equipoise.engine.runners import count_cores

NEEDED = 1 << 30  # bytes of free space below which a long run may not get through
SOON = 30 * 24 * 3600  # seconds: a certificate that ends within a month gets a note


class Optional(NamedTuple):
    """A package that only some users need."""

    extra: str  # the extra of Equipoise that installs it
    purpose: str  # what it is for


OPTIONAL = {
    "flwr": Optional("flower", "real federations"),
    "datasets": Optional("data", "hub data"),
    "optuna": Optional("tune", "tuning"),
}


class Finding(NamedTuple):
    """The outcome of one check."""

    what: str  # the thing that was checked
    state: Literal["ok", "note", "bad"]  # `note` is worth knowing, `bad` has to be mended
    found: str  # what was found
    advice: str = ""  # what to do about it


def examine(
    out: Path,
    ports: Sequence[int] = (),
    certificates: Sequence[Path] = (),
    key: Path | None = None,
    ca: Path | None = None,
    host: str | None = None,
) -> list[Finding]:
    """Do all checks. A certificate is tried in a handshake if its key and the authority's certificate are given."""
    tried = [served(path, key, ca, host) for path in certificates] if key and ca else map(certificate, certificates)
    return [
        *installation(),
        machine(),
        folder_for_runs(out),
        data_folder(),
        *(port(number) for number in ports),
        *tried,
        *([certificate(ca)] if ca else []),
    ]


def installation() -> Iterable[Finding]:
    """Check the versions of Python and of every package that Equipoise needs or can use."""
    fits = sys.version_info >= (3, 11)
    yield Finding(
        "Python", "ok" if fits else "bad", platform.python_version(), "" if fits else "Install 3.11 or newer."
    )
    yield Finding("equipoise", "ok", version("equipoise"))
    for text in requires("equipoise") or ():
        one = Requirement(text)
        needed = one.marker is None or one.marker.evaluate({"extra": ""})
        if needed:
            yield package(one)
        elif (
            one.name in OPTIONAL and one.marker is not None and one.marker.evaluate({"extra": OPTIONAL[one.name].extra})
        ):
            yield package(one, OPTIONAL[one.name])


def package(wanted: Requirement, optional: Optional | None = None) -> Finding:
    """Check that a package is installed in a version that fits."""
    install = f"pip install '{wanted.name}{wanted.specifier}'"
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        if optional:
            advice = f"For {optional.purpose}: pip install '.[{optional.extra}]' in a checkout of Equipoise."
            return Finding(wanted.name, "note", "not installed, not needed here", advice)
        return Finding(wanted.name, "bad", "not installed", f"{install}.")
    if not wanted.specifier.contains(found, prereleases=True):
        return Finding(wanted.name, "bad", f"{found}, not {wanted.specifier}", f"{install}.")
    return Finding(wanted.name, "ok", found)


def machine() -> Finding:
    """Count cores and threads, and look for a GPU."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    threads = torch.get_num_threads()
    text = f"{count_cores()} cores, torch uses {threads} threads, {'a GPU' if gpu else 'no GPU'}"
    if threads > count_cores():
        return Finding(
            "machine", "note", text, f"More threads than cores are slow: set OMP_NUM_THREADS={count_cores()}."
        )
    return Finding("machine", "ok", text)


def folder_for_runs(out: Path) -> Finding:
    """Check that runs and checkpoints can be written to `out`, and that the disk has space for them."""
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
    """Check the folder with the files of the named data sets."""
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
    states = {name: say_availability(name) for name in DATASETS}
    lacking = [name for name, state in states.items() if state not in ("here", "none needed", "")]
    text = f"{place}, {len(states) - len(lacking)} of {len(states)} data sets ready"
    if lacking:
        return Finding("data folder", "note", text, f"`equipoise datasets` says what is missing: {', '.join(lacking)}.")
    return Finding("data folder", "ok", text)


def port(number: int) -> Finding:
    """Check that a server could listen on this port."""
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
    """Check that a certificate can be read, and for how long it is valid."""
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
            name,
            "ok",
            "readable; a certificate of one server",
            "With --key and --ca it is tried as a server would use it.",
        )
    return _lasting(name, min(ends, key=ssl.cert_time_to_seconds))


def _lasting(name: str, end: str, more: str = "") -> Finding:
    left = ssl.cert_time_to_seconds(end) - time.time()
    if left < 0:
        return Finding(name, "bad", f"ended {end}", "Make a new one: docs/flower.md says how.")
    return Finding(
        name, "note" if left < SOON else "ok", f"good for {left / 86400:.0f} days{more}", "Renew it." * (left < SOON)
    )


def served(path: Path, key: Path, ca: Path, host: str | None = None) -> Finding:
    """Check that sites that trust the authority `ca` would trust a server with this certificate and key.

    Server and site do a TLS handshake in memory, as they would over the network.
    """
    name = f"certificate {path.name}"
    for file in (path, key, ca):
        if not file.is_file():
            return Finding(name, "bad", f"{file} is not there", "Check the path.")
    server, site = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    site.check_hostname = host is not None
    try:
        server.load_cert_chain(path, key, password="")
    except OSError as error:  # ssl.SSLError is an OSError, too
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            return Finding(
                name, "bad", f"{key} is not its key", "Name the key that it was made with, or make both anew."
            )
        advice = "Both must be PEM files that you may read, and the key without a password."
        return Finding(name, "bad", f"{path} or {key} cannot be read", advice)
    try:
        site.load_verify_locations(cafile=str(ca))
    except OSError:
        return Finding(name, "bad", f"{ca} is no certificate in PEM form", "Export it as PEM, from BEGIN to END.")
    try:
        shown = _handshake(server, site, host)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        if "expired" in why or "not yet valid" in why:
            return Finding(name, "bad", why, "Make a new one, and look at this machine's clock.")
        if "mismatch" in why.lower():
            return Finding(name, "bad", why, f"Make one whose subjectAltName has {host}.")
        advice = f"Sites that trust {ca.name} will refuse it: sign it with that authority, or give them the right one."
        return Finding(name, "bad", f"{ca.name} did not sign it ({why})", advice)
    names = ", ".join(value for _, value in shown.get("subjectAltName", ()))
    return _lasting(name, str(shown["notAfter"]), f" at {names}" if names else "")


def _handshake(server: ssl.SSLContext, site: ssl.SSLContext, host: str | None) -> dict[str, Any]:
    """Do a handshake, and return the server's certificate as the site sees it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [site.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(10):  # the two answer each other in turn; four turns are enough
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return dict(ends[0].getpeercert() or {})
