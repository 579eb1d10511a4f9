"""A SuperLink and SuperNodes as processes on this machine, for tests, benchmarks and examples."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def find_free_port() -> int:
    """A port of this machine that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def find_command(name: str) -> str:
    """Where a command of the environment that runs this is."""
    return str(Path(sys.executable).with_name(name))


def make_certificates(folder: Path) -> None:
    """Write a certificate authority (`ca.pem`), and a certificate of this machine (`server.pem`, `server.key`)."""

    def call_openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    call_openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30",
                 "-subj", "/CN=federation CA")  # fmt: skip
    call_openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    call_openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", "30", "-extfile", "names", "-out", "server.pem")  # fmt: skip


def make_node_key(path: Path) -> None:
    """Write a key pair of a SuperNode: `path`, and `path.pub`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", path.name, "-f", str(path)], check=True
    )


class Tap:
    """Somebody on the way to a SuperLink: passes on what nodes and server say, and keeps what the nodes said."""

    def __init__(self, port: int) -> None:
        self.goal = port
        self.heard: list[bytearray] = []  # what came through each connection from its node
        self.door = socket.create_server(("127.0.0.1", 0))
        self.ends: list[socket.socket] = []
        self.port = int(self.door.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the door is closed
            while True:
                node = self.door.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.goal))
                self.ends += [node, server]
                self.heard.append(bytearray())
                for ends in ((node, server, self.heard[-1]), (server, node, bytearray())):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, goal: socket.socket, heard: bytearray) -> None:
        with contextlib.suppress(OSError):
            while said := source.recv(1 << 16):
                heard += said
                goal.sendall(said)
        with contextlib.suppress(OSError):
            goal.shutdown(socket.SHUT_WR)

    def replay(self) -> None:
        """Say to the SuperLink, once more, all that the nodes said, and wait until it has heard it."""
        for said in list(self.heard):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.goal), 10) as again:
                again.sendall(said)
                again.shutdown(socket.SHUT_WR)
                while again.recv(1 << 16):
                    pass

    def close(self) -> None:
        """Let nobody in any more, and cut all connections."""
        with contextlib.suppress(OSError):
            self.door.shutdown(socket.SHUT_RDWR)  # wakes up who waits at the door
        for one in (self.door, *self.ends):
            one.close()


class Loopback:
    """Processes of one federation. Everything they write is below `folder`. With `simulated` sites Flower's simulation
    engine plays so many of them, and there are no SuperNodes."""

    def __init__(self, folder: Path, tls: bool = False, authentication: bool = False, simulated: int = 0) -> None:
        self.folder, self.tls, self.authentication, self.simulated = folder, tls, authentication, simulated
        self.port = find_free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        home.mkdir(parents=True)
        if tls:
            make_certificates(folder)
        trust = f'root-certificates = "{folder / "ca.pem"}"' if tls else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n{trust}\n'
        )
        # Flower's processes start others by name: they must find those of this environment, activated or not.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(home), "PATH": path}

    def start(self, name: str, *words: str) -> None:
        """Start a command of this environment as a process group of its own, so that its children end with it."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [find_command(words[0]), *words[1:]], cwd=self.folder, env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        files = ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        safety = files if self.tls else ["--insecure"]
        extra = ["--enable-supernode-auth"] if self.authentication else []
        extra += ["--simulation"] if self.simulated else []
        self.start("superlink", "flower-superlink", *safety, *extra, "--host", "127.0.0.1", "--port", str(self.port),
                   "--disable-runtime-dependency-installation")  # fmt: skip
        self.wait_for_superlink()

    def wait_for_superlink(self) -> None:
        """Wait until the SuperLink answers."""
        for _ in range(3000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"The SuperLink did not start: {self.read_log('superlink')}")

    def start_supernode(self, name: str, config: str, key: Path | None = None, tap: Tap | None = None) -> None:
        """Start a SuperNode; `config` tells its app which data it holds. With a tap, somebody listens on its way."""
        safety = ["--root-certificates", "ca.pem"] if self.tls else ["--insecure"]
        extra = ["--auth-supernode-private-key", str(key)] if key else []
        address = f"127.0.0.1:{tap.port}" if tap else self.address
        self.start(name, "flower-supernode", *safety, *extra, "--superlink", address,
                   "--port", str(find_free_port()), "--node-config", config)  # fmt: skip

    def register(self, key: Path) -> str:
        """Let the SuperLink know the public key of a node."""
        words = [find_command("flwr"), "supernode", "register", f"{key}.pub", "here"]
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def run(self, app: Path, seconds: float, config: str = "", superlink: str = "here") -> Iterator[str]:
        """Start a run, and give what it says, line by line, for so many seconds at most. `superlink` is the name of the
        SuperLink in Flower's configuration."""
        changed = ["--run-config", config] if config else []
        if self.simulated:
            changed += ["--federation-config", f"num-supernodes={self.simulated} client-resources-num-cpus=1"]
        words = [find_command("flwr"), "run", str(app), superlink, "--stream", *changed]
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.running["flwr run"] = process
        end = time.monotonic() + seconds
        out, rest = process.stdout.fileno(), b""
        os.set_blocking(out, False)
        try:
            while time.monotonic() < end:
                over = process.poll() is not None
                with contextlib.suppress(BlockingIOError):
                    rest += os.read(out, 1 << 16)
                *lines, rest = rest.split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
                if over:
                    return
                time.sleep(0.1)
        finally:
            self.end("flwr run")
            process.stdout.close()

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process and those it started."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def send_signal(self, name: str, what: signal.Signals) -> None:
        """Send a signal to a process and those it started."""
        os.killpg(self.running[name].pid, what)

    def read_log(self, name: str) -> str:
        """What a process has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.running)):
            self.end(name)
