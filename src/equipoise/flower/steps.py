"""The commands by which an app is run with real processes, from the server's certificate to the run itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from equipoise.errors import EquipoiseError
from equipoise.flower.plan import Plan

FIRST_PORT = 9094  # at which a SuperNode listens for its own processes; a second one on the same machine needs another
MOST_SHOWN = 4  # sites of one machine whose commands are all shown
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


class Step(NamedTuple):
    """Something to do, in words, and the lines to type for it."""

    what: str
    lines: Sequence[str]


def list_steps(plan: Plan, folder: Path, address: str, tls: bool | None = None) -> list[Step]:
    """What to do, one step after the other, so that the app in `folder` runs at the plan's sites.

    `address` is the server's, `host:port`, as the sites reach it; one of this machine means that all sites are on it.
    `tls` says whether connections are encrypted and nodes have keys; by default they do unless all is on one machine.
    """
    host, port = _split(address)
    alone = host in THIS_MACHINE
    safe = not alone if tls is None else tls
    names = [f"site{k + 1}" for k in range(plan.sites)] if alone else ["north"]
    known = [
        "[superlink.federation]",
        f'address = "{address}"',
        'root-certificates = "/path/to/ca.pem"' if safe else "insecure = true",
    ]
    steps = [_make_certificate(host, port)] if safe else []
    steps += [
        Step("The server", [_start_server("127.0.0.1" if alone else "0.0.0.0", port, safe)]),
        Step("Tell `flwr` where the server is, in ~/.flwr/config.toml", known),
    ]
    if safe:
        made = [f'ssh-keygen -t ecdsa -b 384 -N "" -f {name}' for name in names]
        registered = [f"flwr supernode register {name}.pub federation" for name in names]
        steps += [
            Step("A key for each site; its public half goes to the server's administrator", _shorten(made)),
            Step("Who registers it at the server", _shorten(registered)),
        ]
    nodes = [_start_node(plan, k, name, address, alone, safe) for k, name in enumerate(names)]
    where = f"The {plan.sites} sites, each in a terminal of its own" if alone else "Each site, on its own machine"
    numbered = "" if alone else f", with a number of its own from 0 to {plan.sites - 1}"
    steps.append(Step(where + (numbered if plan.data else ", with a name and a file of its own"), _shorten(nodes)))
    steps.append(Step("The run", [f"flwr run {shlex.quote(str(folder))} federation --stream"]))
    return steps


def _shorten(lines: Sequence[str]) -> Sequence[str]:
    """The lines of many sites: the first two and the last."""
    if len(lines) <= MOST_SHOWN:
        return lines
    return [*lines[:2], f"# ... and so on: {len(lines)} in all, the last is", lines[-1]]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise EquipoiseError(f"--address must be host:port, such as server.example.org:8000. Found {address!r}.")
    return host.strip("[]"), int(port)


def _make_certificate(host: str, port: int) -> Step:
    kind = "IP" if host.replace(".", "").isdecimal() or ":" in host else "DNS"
    # Flower's processes at the server reach it as 127.0.0.1, so that the certificate must be valid for that, too.
    names = dict.fromkeys((f"{kind}:{host}", "DNS:localhost", "IP:127.0.0.1"))
    return Step(
        "A certificate of the server; the sites get ca.pem, the keys stay with the administrator",
        [
            'openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 365 -subj "/CN=federation CA"',
            f'openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj "/CN={host}"',
            f'printf "subjectAltName={",".join(names)}\\n" > names',
            "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -extfile names "
            "-out server.pem",
            f"equipoise doctor --certificate server.pem --key server.key --ca ca.pem --host {host} --port {port}",
        ],
    )


def _start_server(host: str, port: int, safe: bool) -> str:
    files = "--ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key --enable-supernode-auth"
    return (
        f"flower-superlink {files if safe else '--insecure'} --host {host} --port {port} "
        "--disable-runtime-dependency-installation"
    )


def _start_node(plan: Plan, number: int, name: str, address: str, alone: bool, safe: bool) -> str:
    """The command of one site. Several SuperNodes of one machine each need a port of their own."""
    config = f"partition-id={number}" if plan.data else f'site="{name}" data="/path/to/{name}.csv"'
    safety = f"--root-certificates ca.pem --auth-supernode-private-key {name}" if safe else "--insecure"
    port = f" --port {FIRST_PORT + number}" if alone else ""
    return f"flower-supernode {safety} --superlink {address}{port} --node-config '{config}'"
