# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the build picks TensorFlow, a compiler and the number of jobs."""

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.packaging.installed import BOTH, ROOT

# --- Choosing TensorFlow in setup.py -------------------------------------------------------------


@pytest.fixture
def environments(
    find_tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str], dict[str, str]], None]:
    """A function that sets what the target and the isolated environment seem to hold."""
    monkeypatch.setenv("PYTHONPATH", "isolated")

    def fake(target: dict[str, str], isolated: dict[str, str]) -> None:
        def find(code: str, env: dict[str, str], *names: str) -> dict:
            assert names == BOTH
            where, versions = ("/i", isolated) if "PYTHONPATH" in env else ("/t", target)
            return {"folder": f"{where}/tensorflow" if versions else None, "versions": versions}

        monkeypatch.setattr(find_tensorflow, "_python_json", find)

    return fake


def test_what_a_child_finds_is_told_from_what_it_logs(find_tensorflow: ModuleType) -> None:
    code = "import sys; open(sys.argv[1], 'w').write('[1]'); print('a line after it', sys.argv[2])"
    assert find_tensorflow._python_json(code, dict(os.environ), "x") == [1]


Environments = Callable[[dict[str, str], dict[str, str]], None]


@pytest.mark.parametrize(
    ("target", "isolated", "expected"),
    [
        ({"tensorflow": "2.21.0"}, {}, ("/t/tensorflow", "tensorflow", True)),
        ({"tensorflow-cpu": "2.21.0"}, {}, ("/t/tensorflow", "tensorflow-cpu", True)),
        ({n: "2.21.0" for n in BOTH}, {}, ("/t/tensorflow", "tensorflow", True)),
        ({}, {"tensorflow": "2.21.1"}, ("/i/tensorflow", "tensorflow", False)),
        # The target's comes first: it is what the user's programs will load.
        (
            {"tensorflow-cpu": "2.21.0"},
            {"tensorflow": "2.21.1"},
            ("/t/tensorflow", "tensorflow-cpu", True),
        ),
    ],
)
def test_finds_tensorflow(
    target: dict[str, str],
    isolated: dict[str, str],
    expected: tuple[str, str, bool],
    setup_py: ModuleType,
    environments: Environments,
) -> None:
    environments(target, isolated)
    found = setup_py.TensorFlow.find()
    assert (str(found.folder), found.distribution, found.lasting) == expected


def test_finds_no_tensorflow(setup_py: ModuleType, environments: Environments) -> None:
    environments({}, {})
    assert setup_py.TensorFlow.find() is None


def test_other_tensorflow_in_the_target_is_an_error(
    setup_py: ModuleType, environments: Environments
) -> None:
    environments({"tensorflow-cpu": "2.19.1"}, {"tensorflow": "2.21.0"})
    with pytest.raises(setup_py.BuildError) as caught:
        setup_py.TensorFlow.find()
    assert str(caught.value) == (
        "\ntf_fuse: needs TensorFlow 2.20 or 2.21, but tensorflow-cpu 2.19.1 is installed in "
        "/t/tensorflow.\nInstall a matching one first:\n"
        '    python -m pip install "tensorflow-cpu>=2.21,<2.22"\n'
    )


def test_unknown_distribution_name_is_an_error(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_FUSE_TENSORFLOW", "tensorflow-gpu")
    with pytest.raises(setup_py.BuildError) as caught:
        setup_py.main()
    assert str(caught.value) == (
        "\ntf_fuse: TF_FUSE_TENSORFLOW is 'tensorflow-gpu'; it must be one of "
        "('tensorflow', 'tensorflow-cpu').\n"
    )


def _unpack(folder: Path, name: str, version: str) -> str:
    """Makes what an unpacked wheel leaves of its metadata; returns its package."""
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder / "tensorflow")


def test_another_processor_has_the_same_version(setup_py: ModuleType, tmp_path: Path) -> None:
    here = setup_py.TensorFlow(Path("/here"), {"tensorflow-cpu": "2.21.0"}, {}, True, "/python")
    there = here.of_folder(_unpack(tmp_path / "same", "tensorflow", "2.21.0"))
    assert (there.foreign, there.distribution, there.minor) == (True, "tensorflow", "2.21")
    assert (there.folder, there.python) == (tmp_path / "same" / "tensorflow", "/python")
    with pytest.raises(setup_py.BuildError) as caught:
        here.of_folder(_unpack(tmp_path / "other", "tensorflow", "2.21.1"))
    assert str(caught.value) == (
        f"\ntf_fuse: TF_FUSE_FOLDERS names {tmp_path}/other/tensorflow, which has "
        "{'tensorflow': '2.21.1'}; /python has {'tensorflow-cpu': '2.21.0'}. The versions must be "
        "the same.\n"
    )


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("sparc", "error: ARCH is sparc; it must be x86_64 or aarch64\n"),
        (
            "aarch64" if platform.machine() == "x86_64" else "x86_64",
            "error: no compiler for {0} (no-such-compiler). Install one: sudo apt-get install "
            "g++-{1}-linux-gnu\n",
        ),
    ],
)
def test_wheel_for_another_processor_needs_its_compiler(arch: str, expected: str) -> None:
    env = {**os.environ, "ARCH": arch, "CXX": "no-such-compiler"}
    done = subprocess.run([ROOT / ".ci" / "wheel"], env=env, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == expected.format(arch, arch.replace("_", "-"))


def test_missing_compiler_is_an_error_with_the_command(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup_py.BuildError) as caught:
        setup_py.compiler()
    assert str(caught.value) == (
        "\ntf_fuse: no C++ compiler was found (looked for g++, clang++, c++). Install one:\n"
        "    sudo apt-get install g++\n"
    )


def test_jobs_are_limited_by_memory_and_by_the_standard_variable(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(setup_py, "BYTES_PER_JOB", 1 << 60)
    assert setup_py.jobs() == 1
    monkeypatch.setattr(setup_py, "BYTES_PER_JOB", 1)
    assert setup_py.jobs() == 64
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    assert setup_py.jobs() == 3
