# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processes of `ranks.py`: what ranks are forked from, and a rank's life.

python tests/cluster/collectives/rank.py SOCKET
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import queue
import signal
import sys
import threading
from typing import Any

_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


def main(address: str) -> None:
    """Forks ranks on command; ends when its parent does."""
    import tensorflow as tf

    _load_lazy(tf)
    from tests.cluster.collectives import cases as collective_cases  # noqa: F401  (for the ranks)
    from tests.cluster.collectives import ranks as collective_ranks

    threads = len(os.listdir("/proc/self/task"))
    connection = collective_ranks.connect(address)
    connection.send("ready")
    print(f"{threads} threads before the first fork", file=sys.stderr)
    children = set()
    try:
        while True:
            command = connection.recv()
            if "reap" in command:
                if command["reap"] in children:
                    os.waitpid(command["reap"], 0)
                    children.discard(command["reap"])
                connection.send(None)
                continue
            pid = os.fork()
            if pid == 0:
                connection.close()
                try:
                    _rank(address, command)
                finally:
                    os._exit(1)
            children.add(pid)
            connection.send(pid)
    except EOFError:
        os._exit(0)


def _load_lazy(tf: Any) -> None:
    """Modules that TensorFlow imports when they are first named."""
    _ = tf.raw_ops, tf.distribute.MultiWorkerMirroredStrategy, tf.keras.layers.Dense


def _rank(address: str, spec: dict[str, Any]) -> None:
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(spec["env"])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    from tests.cluster.collectives import cases as collective_cases
    from tests.cluster.collectives import ranks as collective_ranks

    connection = collective_ranks.connect(address)
    enter(spec["place"], spec["log"])
    commands: queue.Queue[Any] = queue.Queue()

    def listen() -> None:
        try:
            while True:
                commands.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=listen, name="commands", daemon=True).start()
    if spec["patient"]:
        _be_patient()
    member = collective_cases.Member(spec)
    connection.send("ready")
    while True:
        command = commands.get()
        connection.send(collective_cases.outcome(member, command["case"], command["args"]))


def _be_patient() -> None:
    """Make the time after which TensorFlow takes a silent rank for dead as long as a test's."""
    from tensorflow.python.eager import context

    stock = context.Context.configure_coordination_service
    patient = functools.partialmethod(stock, heartbeat_timeout_in_ms=300_000)
    context.Context.configure_coordination_service = patient


def enter(place: dict[str, Any], log: str) -> None:
    """Make this process one of another host, as far as its channels can see.

    Args:
      place: "netns", a network namespace's name; "names", the text of /etc/hosts; both optional.
      log: a path beside which files may be made.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    if "netns" in place:
        with open(f"/run/netns/{place['netns']}", "rb") as namespace:
            check(libc.setns(namespace.fileno(), _CLONE_NEWNET))
    if "names" in place:
        names = f"{log}.hosts"
        with open(names, "w") as file:
            file.write(place["names"])
        check(libc.unshare(_CLONE_NEWNS))
        check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        check(libc.mount(names.encode(), b"/etc/hosts", None, _MS_BIND, None))


if __name__ == "__main__":
    main(sys.argv[1])
