# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `python -m tf_fuse doctor`: check whether fused receives work on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tf_fuse.cli import round_trip

_PROTOCOL = "grpc+fuse"
# Errors whose messages need no type; the report names the type of any other error.
_EXPLAINED = (ImportError, RuntimeError)
# Characters of another process's command line in the report.
_COMMAND_CHARS = 100


class _TroubleError(RuntimeError):
    """A problem with a better remedy than its check's.

    Attributes:
      remedy: what to do.
      works: whether fused receives work nevertheless.
    """

    def __init__(self, text: str, remedy: str, works: bool):
        super().__init__(text)
        self.remedy = remedy
        self.works = works


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
      name: what is checked.
      function: returns what it found, or raises.
      remedy: what to do when it raises.
      needs: names of the checks that must pass before this one.
      waits_for: what takes seconds; a terminal shows it while the check runs.
      applies: returns whether there is anything to check; if not, the report has no line for it.
    """

    name: str
    function: Callable[[], str]
    remedy: str
    needs: tuple[str, ...] = ()
    waits_for: str = ""
    applies: Callable[[], bool] = lambda: True


def run(json_path: str | None) -> int:
    """Run all checks.

    Args:
      json_path: where to write the results as JSON beside the lines; "-" for standard output, in
        place of them.

    Returns:
      0 if each check passes, possibly with a warning, else 1.
    """
    results: list[dict[str, Any]] = []
    for check in CHECKS:
        if not check.applies():
            continue
        failed = [result["check"] for result in results if not result["ok"]]
        with _spinner(check, json_path):
            result = _run_one(check, failed)
        results.append(result)
        if json_path != "-":
            word = "FAIL" if not result["ok"] else "WARN" if result["warning"] else "OK  "
            print(f"{word} {check.name}: {result['detail']}", flush=True)
            if result["remedy"]:
                print(f"     remedy: {result['remedy']}", flush=True)
    works = all(result["ok"] for result in results)
    text = json.dumps({"works": works, "checks": results}, indent=1)
    if json_path == "-":
        print(text)
    elif json_path:
        Path(json_path).write_text(text + "\n", encoding="utf-8")
    return 0 if works else 1


def _spinner(check: Check, json_path: str | None) -> contextlib.AbstractContextManager[Any]:
    """Show on a terminal what is being checked, and erase that line before the result."""
    stream = sys.stderr if json_path == "-" else sys.stdout
    if not stream.isatty():
        return contextlib.nullcontext()
    try:
        from rich.console import Console
    except ImportError:  # an environment with gaps is what the command is for
        return contextlib.nullcontext()
    text = f"checking {check.name}" + (f": {check.waits_for}" if check.waits_for else "")
    return Console(file=stream, highlight=False).status(text)


def _run_one(check: Check, failed: list[str]) -> dict[str, Any]:
    result = {"check": check.name, "ok": False, "warning": False, "detail": "", "remedy": ""}
    missing = [name for name in failed if name in check.needs]
    if missing:
        return {**result, "detail": f"not tried, because this failed: {', '.join(missing)}"}
    try:
        return {**result, "ok": True, "detail": check.function()}
    except _TroubleError as error:
        found = {"ok": error.works, "warning": error.works}
        return {**result, **found, "detail": str(error), "remedy": error.remedy}
    except Exception as error:  # whatever goes wrong is what the user asks for
        text = str(error) if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {error}"
        return {**result, "detail": text, "remedy": check.remedy}


def _tensorflow() -> str:
    """Compare versions; import nothing native.

    Raises:
      ImportError: one of the three that `_native.check` raises.
      _TroubleError: both distributions of TensorFlow are installed.
    """
    from tf_fuse import _native

    versions = _native.tensorflow_versions()
    texts = [f"{name} {version}" for name, version in versions.items()]
    both = len(versions) > 1
    try:
        info = _native.check()
        fits = True
    except _native.VersionMismatchError:
        # The remedy of this error would install one distribution over the other again.
        if not both:
            raise
        info = _native.build_info()
        fits = False
    text = f"tf_fuse {info['tf_fuse']} was built against TensorFlow {info['tensorflow']}"
    if fits:
        texts.append(f"protobuf {metadata.version('protobuf')}")
        text += f" with protobuf {info['protobuf']}; installed: {', '.join(texts)}"
    else:
        text += f", but {' and '.join(texts)} are installed in this environment"
    if both:
        kept = info.get("tensorflow_distribution", "tensorflow")
        raise _TroubleError(
            f"{text}. {' and '.join(versions)} lie over one another in one folder: whichever is "
            "removed or updated breaks the other",
            f"python -m pip uninstall -y {' '.join(versions)} && "
            f'python -m pip install "{kept}=={info["tensorflow"]}"',
            works=fits,
        )
    return text


def _library() -> str:
    """Load the library; compare the C++ classes that it subclasses.

    Raises:
      ImportError: one of the three that `_native.load` raises.
      RuntimeError: TensorFlow's classes have other virtual functions than in the build.
    """
    from tf_fuse import _class_layouts, _native

    _native.load()
    import tensorflow as tf

    built = _native.build_info().get("classes", {})
    if names := _class_layouts.differing(built, tf.sysconfig.get_include()):
        raise RuntimeError(
            f"{_native.library_path()} is loaded, but TensorFlow {tf.__version__} has other "
            f"virtual functions than the build saw in {', '.join(names)}"
        )
    return (
        f"{_native.library_path()} is loaded; the {len(built)} C++ classes of TensorFlow that it "
        "extends have the virtual functions of the build"
    )


def _internals() -> str:
    """Check each private member of TensorFlow and Keras that is replaced or read.

    Raises:
      RuntimeError: members have another shape; the text names them and what is off without them.
    """
    from tf_fuse._tensorflow import catalogue, check_imports, feature_names, features

    found = [
        f"{member} of {features.version_of(member)} {problem}: "
        + ", and ".join(feature_names.WITHOUT[feature] for feature in member.features)
        for member, problem in features.checks()
    ]
    found += check_imports.problems()
    if found:
        raise RuntimeError("; ".join(found))
    members = sum(member.is_installed() for member in catalogue.MEMBERS)
    return (
        f"{members} private members of TensorFlow and Keras have the shape that is relied on, and "
        f"{len(check_imports.used())} internal names are there"
    )


def _protocol() -> str:
    """Make a server that speaks our protocol, on a port that the system chooses."""
    import tensorflow as tf

    server = tf.distribute.Server({"local": ["localhost:0"]}, protocol=_PROTOCOL, start=False)
    return f"{_PROTOCOL} is registered ({server.target})"


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        probe.listen()
        return f"127.0.0.1:{probe.getsockname()[1]} accepts connections"


def _task_address() -> str:
    """Check whether the port of TF_CONFIG's task is free on this machine.

    Raises:
      _TroubleError: TF_CONFIG does not describe a task.
      RuntimeError: another process has the port; the message names it if it is visible.
    """
    from tf_fuse.cluster import serve

    text = os.environ["TF_CONFIG"]
    try:
        config = serve.parse_tf_config(text)
    except serve.ConfigError as error:
        remedy = "correct TF_CONFIG, or unset it where no task of a cluster is to run"
        raise _TroubleError(str(error), remedy, works=False) from error
    where = f"port {config.port} of task {config.name} (address {config.address})"
    try:
        serve.check_port(config)
    except serve.PortInUseError as error:
        pids = _pids_at(config.port)
        if pids and all(_environment(pid).get("TF_CONFIG") == text for pid in pids):
            return f"{where} is in use by this very task: {_describe(pids)}"
        raise RuntimeError(f"{where} is in use by {_describe(pids)}") from error
    return f"{where} is free"


def _pids_at(port: int) -> list[int]:
    """Return processes that have a socket at a TCP port; none if this user may not see them."""
    import psutil

    try:
        everywhere = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    sockets = [s for s in everywhere if s.laddr and s.laddr.port == port]
    # If none listens, the system uses the port for another process's outgoing connection.
    holders = [s for s in sockets if s.status == psutil.CONN_LISTEN] or sockets
    return sorted({s.pid for s in holders if s.pid is not None})


def _environment(pid: int) -> dict[str, str]:
    import psutil

    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def _describe(pids: list[int]) -> str:
    """Return the names of processes with their command lines."""
    import psutil

    texts = []
    for pid in pids:
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            command = "it has just ended"
        if len(command) > _COMMAND_CHARS:
            command = f"{command[:_COMMAND_CHARS]}..."
        texts.append(f"process {pid} ({command})")
    unseen = "a process of another user or container (root can see which: ss -tlnp)"
    return ", ".join(texts) or unseen


CHECKS = (
    Check(
        "versions",
        _tensorflow,
        "the message ends with the command; the README's install section has all of them",
    ),
    Check(
        "library",
        _library,
        "rebuild it, in the source folder: python -m pip install --force-reinstall --no-deps .",
        needs=("versions",),
        waits_for="imports TensorFlow, which takes some seconds",
    ),
    Check(
        "protocol",
        _protocol,
        "another library took the name, or this one is older than its Python part: rebuild it",
        needs=("versions", "library"),
    ),
    Check(
        "internals",
        _internals,
        "all else works; install the versions that docs/internals.md names, or report this output",
        needs=("versions",),
    ),
    Check("port", _port, "allow this user to listen on 127.0.0.1 (sandbox, firewall, ulimit -n)"),
    Check(
        "task address",
        _task_address,
        'stop that process, or give the task another port in TF_CONFIG["cluster"] of every task',
        applies=lambda: bool(os.environ.get("TF_CONFIG", "").strip()),
    ),
    Check(
        "round trip",
        round_trip.measure,
        "unset http_proxy or add localhost to no_proxy; else report it with this output",
        needs=("versions", "library", "protocol", "port"),
        waits_for="starts a worker and a server, which takes some 10 to 20 s",
    ),
)
