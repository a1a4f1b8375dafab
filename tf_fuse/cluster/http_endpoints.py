# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Serve a task's health and counters over HTTP.

Health is for those who restart tasks or send them work, as Kubernetes' probes do:

| path | 200 | 503 |
|---|---|---|
| /healthz | the task starts, or its server accepts connections | the server does not |
| /readyz | the server accepts connections | the task starts, or the server does not |
| /metrics | the counters, in Prometheus's text format | they cannot be read; the text says why |

It listens before the task's server starts, which takes seconds.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import socket
import threading
from collections.abc import Iterator

# A client that sends nothing, and a server that does not answer, are given up after that.
_SECONDS = 5.0
_SERVE = "tf_fuse serve"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HealthServer
    timeout = _SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tf_fuse", ""

    def do_GET(self) -> None:
        answers = {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            self._send(404, f"there are {', '.join(answers)}\n")
        else:
            self._send(*answer())

    do_HEAD = do_GET

    def _health(self) -> tuple[int, str]:
        return _status(self.server.why_not_healthy(), "ok" if self.server.has_started else "starts")

    def _readiness(self) -> tuple[int, str]:
        return _status(self.server.why_not_ready())

    def _metrics(self) -> tuple[int, str]:
        try:
            return 200, self.server.metrics()
        except Exception as error:  # whatever it is, the probes must go on
            return 503, f"{error}\n"

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing: probes come every few seconds."""


def _status(why: str, well: str = "ok") -> tuple[int, str]:
    return (503, f"{why}\n") if why else (200, f"{well}\n")


def serve_metrics(address: str, port: int) -> None:
    """Serve the counters of this process, and those of prometheus_client; print the URL.

    Args:
      address: of the interface to listen on.
      port: where to listen; 0 for any free port.

    Raises:
      ImportError: prometheus_client or the plugin is missing.
      OSError: the port is taken, or the address is not of this machine.
    """
    import tf_fuse.prometheus

    tf_fuse.prometheus.register()
    import prometheus_client

    with _naming("--metrics-port", address, port):
        server, _ = prometheus_client.start_http_server(port, addr=address)
    _print(_SERVE, "metrics", address, server.server_port)


def _print(says: str, path: str, address: str, port: int) -> None:
    host = f"[{address}]" if ":" in address else address
    what = path.removesuffix("z")
    print(f"{says}: {what} at http://{host}:{port}/{path}", flush=True)


@contextlib.contextmanager
def _naming(option: str, address: str, port: int) -> Iterator[None]:
    """Name the option in errors of a server that cannot listen."""
    try:
        yield
    except OSError as error:
        what = "is in use by another process on this machine"
        if error.errno != errno.EADDRINUSE:
            what = f"cannot be listened on at {address}: {error.strerror}"
        raise OSError(error.errno, f"{option} {port} {what}") from error


class HealthServer(http.server.ThreadingHTTPServer):
    """Serves the three paths until the process ends.

    Attributes:
      has_started: whether the task takes work, or has taken some.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int, says: str = "tf-fuse launch"):
        """Listen, answer in threads of its own, and print the URL.

        Args:
          address: of the interface to listen on.
          port: where to listen; 0 for any free port.
          says: who prints the URL.

        Raises:
          OSError: the port is taken, or the address is not of this machine.
        """
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.has_started = False
        with _naming("--health-port", address, port):
            super().__init__((address, port), _Handler)
        _print(says, "healthz", address, self.server_port)
        threading.Thread(target=self.serve_forever, name="health", daemon=True).start()

    def why_not_ready(self) -> str:
        """Return why the task takes no work; "" if it does."""
        raise NotImplementedError

    def why_not_healthy(self) -> str:
        """Return why the task should be started again; "" if it need not."""
        return self.why_not_ready() if self.has_started else ""

    def metrics(self) -> str:
        """Return the counters, in Prometheus's text format."""
        raise NotImplementedError


class TaskHealth(HealthServer):
    """Serves the health of a task whose server runs in this process."""

    def __init__(self, address: str, port: int, task: tuple[str, int]):
        """Listen, answer in threads of its own, and print the URL.

        Args:
          address: of the interface to listen on.
          port: where to listen; 0 for any free port.
          task: host and port of the task's server.

        Raises:
          OSError: the port is taken, or the address is not of this machine.
        """
        self._task = task
        super().__init__(address, port, _SERVE)

    def why_not_ready(self) -> str:
        """Return why the task's server takes no work; "" if it does."""
        if not self.has_started:
            return "the task's server has not started"
        host, port = self._task
        try:
            socket.create_connection((host, port), timeout=_SECONDS).close()
        except OSError as error:
            return f"the task's server does not accept connections at {host}:{port}: {error}"
        return ""

    def metrics(self) -> str:
        """Return the counters of this process, in Prometheus's text format."""
        import tf_fuse.prometheus

        return tf_fuse.prometheus.prometheus_text()
