# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Install the wheel in dist/ on a PATH without a compiler, and run it.

The default run installs it beside the TensorFlow that is here. TF_FUSE_TEST_WHEEL=1 (`make
test-wheel`) installs it with each TensorFlow that it holds a library for, by pip alone.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import scripted
from tf_fuse.cluster.ports import HeldPorts

_HERE = Path(__file__).parent
_LONG = os.environ.get("TF_FUSE_TEST_WHEEL") == "1"
_MINORS = ("2.20", "2.21")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that `make wheel` has built."""
    tag = f"py3-none-manylinux*_{platform.machine()}"
    found = sorted((scripted.ROOT / "dist").glob(f"tf_fuse-*-{tag}.whl"))
    if not found:
        pytest.skip("dist/ has no wheel: `make wheel` builds it")
    return found[-1]


Python = Callable[..., subprocess.Popen]


@pytest.fixture(scope="module", params=_MINORS if _LONG else ["here"])
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Python:
    """A function that starts the Python of a new environment that has the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv")
    executable = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(executable), "install", "--quiet"]
    install += ["--only-binary", ":all:", "--disable-pip-version-check"]
    if _LONG:
        _run([*install, f"tensorflow-cpu=={request.param}.*"])
        started = time.monotonic()
        _run([*install, f"{wheel}[cpu]"])
    else:
        started = time.monotonic()
        _run([*install, "--no-deps", str(wheel)])
        # After its own packages. No path file of these is read, so no editable tf_fuse is found.
        paths = [path for path in sys.path if path.endswith("-packages")]
        (_site(folder) / "packages-of-the-test.pth").write_text("\n".join(paths))
    kept = ("TEMP", "TMP", "TMPDIR", "LANG")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    # No compiler, no CMake: nothing but the environment's own programs.
    env |= {"PATH": str(executable.parent), "HOME": str(folder), "CUDA_VISIBLE_DEVICES": "-1"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "2"}

    def start(*arguments: str, **variables: str) -> subprocess.Popen:
        command = [str(executable), *arguments]
        return subprocess.Popen(
            command,
            env=env | variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    out = _output(start(str(_HERE / "fused_step.py")))
    print(f"{time.monotonic() - started:.1f} s from the wheel to the first fused step")
    assert str(_site(folder) / "tf_fuse") in out
    return start


def test_wheel_holds_a_library_for_each_tensorflow(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        found = {
            minor: json.loads(file.read(f"tf_fuse/_lib/{minor}/build_info.json"))
            for minor in _MINORS
        }
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        requires = re.findall("^Requires-Dist: (.*)$", file.read(metadata).decode(), re.MULTILINE)
    assert [name for name in names if name.endswith(".so")] == [
        f"tf_fuse/_lib/{minor}/libtf_fuse.so" for minor in _MINORS
    ]
    assert [info["tensorflow"].rsplit(".", 1)[0] for info in found.values()] == list(_MINORS)
    assert [one for one in requires if "tensorflow" in one and "extra ==" not in one] == []


def test_fused_step(python: Python) -> None:
    assert "fused step: " in _output(python(str(_HERE / "fused_step.py")))


def test_doctor(python: Python) -> None:
    report = json.loads(_output(python("-m", "tf_fuse", "doctor", "--json", "-")))
    assert [check["check"] for check in report["checks"] if not check["ok"]] == []


def test_collective(python: Python) -> None:
    with HeldPorts(2) as held:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in held.numbers]}
        workers = []
        for index in range(2):
            task = {"type": "worker", "index": index}
            config = {"cluster": cluster, "task": task, "rpc_layer": "grpc+fuse"}
            workers.append(python(str(_HERE / "collective.py"), TF_CONFIG=json.dumps(config)))
        assert [_output(worker) for worker in workers] == ["all-reduce: 3.0\n"] * 2


def _output(process: subprocess.Popen) -> str:
    """Return what a process prints; it must succeed."""
    out, log = process.communicate()
    assert process.returncode == 0, out + log
    return out


def _run(command: list[str]) -> None:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _site(folder: Path) -> Path:
    """Return the folder of packages of the environment in a folder."""
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    return site
