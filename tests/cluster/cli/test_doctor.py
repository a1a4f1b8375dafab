# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor` as a user runs it: where all is well, and where something is not."""

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import tf_fuse
from tf_fuse import _native
from tf_fuse.cli import doctor, round_trip

pytestmark = pytest.mark.cluster

_PACKAGE = Path(tf_fuse.__file__).parent
_NAMES = ["versions", "library", "protocol", "internals", "port", "round trip"]
_NOT_TRIED = "not tried, because this failed: "
_BUILT = _native.build_info()
_VERSION = _BUILT["tensorflow"]


def _run(env, *arguments, package=_PACKAGE):
    """Runs Python with the package's folder first on its path; returns the finished process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**env, "PYTHONPATH": str(package.parent)},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=250,
        check=False,
    )


def _lib(package):
    """Returns the folder of the library for the installed TensorFlow, in a copy of the package."""
    return package / _native.library_path().parent.relative_to(_PACKAGE)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, to break."""
    folder = tmp_path / "copy" / "tf_fuse"
    shutil.copytree(_PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_all_is_well(isolated_env, tmp_path):
    report = tmp_path / "report.json"
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", str(report))
    lines = [line for line in done.stdout.splitlines() if not line.startswith("     remedy: ")]
    words = {name: "OK  " for name in _NAMES}
    # An environment may well have both, and works.
    both = len(_native.tensorflow_versions()) == 2
    if both:
        words["versions"] = "WARN"
    assert [line.split(":")[0] for line in lines] == [f"{words[n]} {n}" for n in _NAMES], done
    assert done.returncode == 0
    written = json.loads(report.read_text())
    assert written["works"] is True
    assert [check["check"] for check in written["checks"]] == _NAMES
    assert all(check["ok"] for check in written["checks"])
    assert [check["warning"] for check in written["checks"]] == [both] + [False] * 5
    assert [check["remedy"] == "" for check in written["checks"]] == [not both] + [True] * 5
    assert re.fullmatch(
        r"\d+\.\d\d ms from a worker to a server and back, one fused receive each way \(median of "
        r"20 calls\); starting both took \d+\.\d s",
        written["checks"][-1]["detail"],
    )


def _checks(done):
    assert done.returncode == 1, done
    checks = json.loads(done.stdout)["checks"]
    assert [check["check"] for check in checks] == _NAMES
    return {check["check"]: check for check in checks}


def test_library_is_missing(isolated_env, copied):
    library = _lib(copied) / "libtf_fuse.so"
    library.unlink()
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", package=copied)
    assert done.returncode == 1
    first, remedy, *rest = done.stdout.splitlines()
    assert first == (
        f"FAIL versions: the native library of tf_fuse is missing: {library} does not exist. Build "
        "it in tf_fuse's source folder: python -m pip install --force-reinstall --no-deps ."
    )
    assert remedy.startswith("     remedy: ")
    assert rest[:3] == [
        f"FAIL library: {_NOT_TRIED}versions",
        f"FAIL protocol: {_NOT_TRIED}versions, library",
        f"FAIL internals: {_NOT_TRIED}versions",
    ]
    assert rest[3].startswith("OK   port: ")
    assert rest[4:] == [f"FAIL round trip: {_NOT_TRIED}versions, library, protocol"]


def test_the_script_starts_without_the_library(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").unlink()
    # As pip writes it for an entry point.
    script = Path(isolated_env["HOME"]) / "tf-fuse"
    script.write_text("import sys\nfrom tf_fuse.__main__ import main\nsys.exit(main())\n")
    done = _run(isolated_env, str(script), "doctor", "--json", "-", package=copied)
    assert "the native library of tf_fuse is missing" in _checks(done)["versions"]["detail"]


def test_only_the_doctor_starts_without_the_library(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").unlink()
    expected = "tf_fuse._native.LibraryMissingError: the native library of tf_fuse is missing"
    other = Path(isolated_env["HOME"]) / "other"
    other.mkdir()
    (other / "__init__.py").write_text("import tf_fuse\n")
    (other / "__main__.py").write_text("")
    for arguments in (
        ["-c", "import tf_fuse"],
        ["-m", "tf_fuse", "explain", "--example", "cond"],
        ["-m", "tf_fuse.cluster.serve"],
        ["-c", "import tf_fuse.cli"],
        ["-m", "other", "doctor"],
    ):
        done = _run(isolated_env, *arguments, package=copied)
        assert done.returncode == 1, arguments
        assert expected in done.stderr, arguments


def test_library_is_for_another_tensorflow(isolated_env, copied):
    info = _lib(copied) / "build_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "tensorflow": "2.19.0"}))
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert "was built against TensorFlow 2.19.0" in checks["versions"]["detail"]
    assert ", but tensorflow" in checks["versions"]["detail"]
    assert checks["versions"]["remedy"]
    assert checks["round trip"]["detail"].startswith(_NOT_TRIED)


def test_library_is_damaged(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").write_bytes(b"no library")
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert checks["versions"]["ok"]
    assert "it cannot be loaded: " in checks["library"]["detail"]
    assert "pip install" in checks["library"]["remedy"]


@pytest.mark.slow
def test_round_trip_fails(isolated_env, copied):
    # A worker that is not there: the tasks' entry point leaves at once.
    (copied / "cluster" / "serve.py").write_text(
        (copied / "cluster" / "serve.py")
        .read_text()
        .replace("    _status = main()\n", "    _status = 3\n")
    )
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert [name for name, check in checks.items() if not check["ok"]] == ["round trip"]
    assert "ClusterStartError" in checks["round trip"]["detail"]


def test_round_trip_that_is_not_fused_fails(isolated_env, monkeypatch):
    for name in set(os.environ) - set(isolated_env):
        monkeypatch.delenv(name)
    for name, value in isolated_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(_PACKAGE.parent))
    stock = round_trip._PROGRAM.replace('"do_fuse_recv": True', '"do_fuse_recv": False')
    monkeypatch.setattr(round_trip, "_PROGRAM", stock)
    with pytest.raises(RuntimeError) as caught:
        round_trip.measure()
    assert str(caught.value).startswith(
        "exit status 1: [0, 0] fused receives of worker and server (expected 21 each)"
    )


def test_round_trip_is_told_from_what_is_logged(monkeypatch):
    program = 'import sys; open(sys.argv[1], "w").write("two calls"); print("a line after it")'
    monkeypatch.setattr(round_trip, "_PROGRAM", program)
    assert round_trip.measure() == "two calls"


# --- One check at a time, in this process --------------------------------------------------------


@pytest.fixture
def only(monkeypatch):
    """A function that leaves one check, without what it needs."""

    def leave(name):
        (check,) = [check for check in doctor.CHECKS if check.name == name]
        monkeypatch.setattr(doctor, "CHECKS", (check,))

    return leave


def _installed(versions):
    return (
        f"tf_fuse {_BUILT['tf_fuse']} was built against TensorFlow {_VERSION} with protobuf "
        f"{_BUILT['protobuf']}; installed: {versions}, protobuf "
        f"{doctor.metadata.version('protobuf')}"
    )


_OVER_ONE_ANOTHER = (
    ". tensorflow and tensorflow-cpu lie over one another in one folder: whichever is removed or "
    "updated breaks the other\n"
    "     remedy: python -m pip uninstall -y tensorflow tensorflow-cpu && python -m pip install "
    f'"{_BUILT["tensorflow_distribution"]}=={_VERSION}"\n'
)


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_one_distribution_is_well(name, only, monkeypatch, capsys):
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: {name: _VERSION})
    only("versions")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == f"OK   versions: {_installed(f'{name} {_VERSION}')}\n"


def test_both_distributions_are_a_warning_with_the_command(only, monkeypatch, capsys):
    both = {"tensorflow": _VERSION, "tensorflow-cpu": _VERSION}
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: both)
    only("versions")
    assert doctor.run(None) == 0
    text = _installed(f"tensorflow {_VERSION}, tensorflow-cpu {_VERSION}")
    assert capsys.readouterr().out == f"WARN versions: {text}{_OVER_ONE_ANOTHER}"


def test_both_distributions_of_which_one_does_not_fit_fail(only, monkeypatch, capsys):
    both = {"tensorflow": _VERSION, "tensorflow-cpu": "2.20.0"}
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: both)
    only("versions")
    assert doctor.run(None) == 1
    assert capsys.readouterr().out == (
        f"FAIL versions: tf_fuse {_BUILT['tf_fuse']} was built against TensorFlow {_VERSION}, but "
        f"tensorflow {_VERSION} and tensorflow-cpu 2.20.0 are installed in this environment"
        f"{_OVER_ONE_ANOTHER}"
    )


@pytest.fixture
def port():
    """A TCP port that this process keeps from others by a bound socket that does not listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


@contextmanager
def _listener(port, env):
    """Another process that listens on the port."""
    code = (
        "import socket, sys\n"
        "with socket.socket() as sock:\n"
        "    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"    sock.bind(('', {port}))\n"
        "    sock.listen()\n"
        "    print('listens', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout.readline() == b"listens\n"
        yield process
        process.stdin.close()


def _tf_config(port):
    cluster = {"worker": ["elsewhere:2222"], "ps": [f"here.invalid:{port}"]}
    return json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})


def test_address_of_the_task_is_free(port, only, monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == (
        f"OK   task address: port {port} of task ps:0 (address here.invalid:{port}) is free\n"
    )


def test_address_of_the_task_is_in_use_by_another(port, only, monkeypatch, capsys, isolated_env):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    with _listener(port, isolated_env) as process:
        assert doctor.run(None) == 1
        command = " ".join(psutil.Process(process.pid).cmdline())
    assert capsys.readouterr().out == (
        f"FAIL task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by "
        f"process {process.pid} ({command[:100]}...)\n"
        "     remedy: stop that process, or give the task another port in "
        'TF_CONFIG["cluster"] of every task\n'
    )


def test_address_of_the_task_is_in_use_by_the_task(port, only, monkeypatch, capsys, isolated_env):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    with _listener(port, {**isolated_env, "TF_CONFIG": _tf_config(port)}) as process:
        assert doctor.run(None) == 0
    assert capsys.readouterr().out.startswith(
        f"OK   task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by "
        f"this very task: process {process.pid} ("
    )


def test_address_is_in_use_by_a_process_that_cannot_be_seen(
    port, only, monkeypatch, capsys, isolated_env
):
    def denied(kind):
        raise PermissionError

    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    monkeypatch.setattr(psutil, "net_connections", denied)
    only("task address")
    with _listener(port, isolated_env):
        assert doctor.run(None) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        f"FAIL task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by a "
        "process of another user or container (root can see which: ss -tlnp)"
    )


def test_bad_tf_config(only, monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{}")
    only("task address")
    assert doctor.run(None) == 1
    assert capsys.readouterr().out == (
        'FAIL task address: TF_CONFIG["cluster"] must be an object of job name to addresses, found '
        "null\n"
        "     remedy: correct TF_CONFIG, or unset it where no task of a cluster is to run\n"
    )


@pytest.mark.parametrize("value", [None, " "])
def test_no_line_about_the_address_without_tf_config(value, only, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    only("task address")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == ""


# --- On a terminal -------------------------------------------------------------------------------


def _on_terminal(env, stream, *arguments, package):
    """Runs the doctor with one stream on a terminal; returns what that got, and the other."""
    ours, theirs = pty.openpty()
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    with subprocess.Popen(
        [sys.executable, "-m", "tf_fuse", "doctor", *arguments],
        env={**env, "PYTHONPATH": str(package.parent), "TERM": "xterm", "COLUMNS": "200"},
        cwd=env["HOME"],
        stdin=subprocess.DEVNULL,
        **{stream: theirs, other: subprocess.PIPE},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # EIO: the other end is closed
                break
            shown += part
        os.close(ours)
        rest = getattr(process, other).read()
    assert process.returncode == 1
    return shown.decode(), rest.decode()


# What erases the spinner's line, shows the cursor and so on.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def test_terminal_shows_what_is_being_checked(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").unlink()
    shown, _ = _on_terminal(isolated_env, "stdout", package=copied)
    waits = ": starts a worker and a server, which takes some 10 to 20 s"
    assert "checking versions" in shown
    assert f"checking round trip{waits}" in shown
    lines = [_CONTROL.sub("", line) for line in shown.splitlines()]
    assert f"FAIL library: {_NOT_TRIED}versions" in lines
    assert f"FAIL round trip: {_NOT_TRIED}versions, library, protocol" in lines


def test_json_is_clean_while_the_terminal_shows_what_is_being_checked(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").unlink()
    shown, out = _on_terminal(isolated_env, "stderr", "--json", "-", package=copied)
    assert [check["check"] for check in json.loads(out)["checks"]] == _NAMES
    assert "checking versions" in shown
    assert "FAIL" not in shown


def test_no_spinner_in_a_pipe(isolated_env, copied):
    (_lib(copied) / "libtf_fuse.so").unlink()
    # Which would have rich take any stream for a terminal.
    done = _run({**isolated_env, "FORCE_COLOR": "1"}, "-m", "tf_fuse", "doctor", package=copied)
    assert "checking" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_run_hands_over_to_the_server(isolated_env):
    done = _run(isolated_env, "-m", "tf_fuse", "run")
    assert done.returncode == 2
    (error,) = (x for x in done.stderr.splitlines() if x.startswith("tf_fuse serve: error: "))
    assert "TF_CONFIG" in error
