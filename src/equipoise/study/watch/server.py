"""Serves the live page over HTTP: the page, and a version by which it finds out that there is something new."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import socket
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.study.watch.page import build_content, build_live_page, read_live_script, read_live_style
from equipoise.study.watch.shelf import Shelf


class Watcher:
    """Looks at run folders when it is asked, and makes the page anew if something has changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Begin to watch these run folders, or folders that hold them."""
        self.shelf = Shelf(paths)
        self._lock = threading.Lock()  # several pages may ask at once
        self._key: object = None
        self._content = ""

    def look(self) -> tuple[str, str]:
        """What the page shows now, and its version, which changes with it."""
        with self._lock:
            now = time.time()
            seen, problems = self.shelf.look(now)
            key = ([(one.run.place, one.mark, one.is_quiet(now)) for one in seen], problems)
            if key != self._key:
                self._content = build_content(seen, problems, self.shelf.paths, now)
                self._key = key
            return self._content, hashlib.sha256(self._content.encode()).hexdigest()[:16]


def find_policy() -> str:
    """What the browser may run and load: our own script and style, recognised by their hashes, and nothing else.

    So a name that somebody chose cannot run, even if it were not escaped. Charts set style attributes.
    """
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (read_live_style(), read_live_script())
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src-elem 'sha256-{style}'; style-src-attr 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other machine can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(ThreadingHTTPServer):
    """The HTTP server of a watcher."""

    daemon_threads = True

    def __init__(self, watcher: Watcher, host: str, port: int) -> None:
        """Listen at this address. Port 0 takes one that is free."""
        self.watcher, self.policy, self.host = watcher, find_policy(), host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise EquipoiseError(
                f"Cannot listen at {host}, port {port}: {error.strerror}. --port 0 takes a port that is free."
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/"

    def knows(self, name: str) -> bool:
        """Whether a browser may call this server by this name.

        A page from elsewhere can give its own name our address, and would then read what is served here. So on loopback
        only loopback's names are answered.
        """
        host = name.removeprefix("[").split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        return not is_loopback(self.host) or is_loopback(host)


class _Handler(BaseHTTPRequestHandler):
    """Answers a request for the page or for its version."""

    server: Server
    server_version, sys_version = "Equipoise", ""

    def do_GET(self) -> None:
        """Send the page, or its version."""
        if not self.server.knows(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "This name is not one of this server's.\n")
        elif self.path == "/":
            page = build_live_page(*self.server.watcher.look(), time.time())
            self._send(HTTPStatus.OK, "text/html", page)
        elif self.path == "/version":
            self._send(HTTPStatus.OK, "text/plain", self.server.watcher.look()[1])
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /\n")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the page asks every other second."""
