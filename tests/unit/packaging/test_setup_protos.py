# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Generated protocol buffers: when they are generated anew, and with which protoc."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.packaging.installed import ROOT

# --- Protocol buffers ----------------------------------------------------------------------------


class _Protos:
    """A source folder with .proto files, and a protoc that writes their text into its outputs."""

    def __init__(self, root: Path, setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch):
        self.proto = root / "proto" / "tf_fuse" / "v1"
        self.out = root / "tf_fuse" / "v1"
        self.proto.mkdir(parents=True)
        self.out.mkdir(parents=True)
        self.runs: list[list[str]] = []
        self.status = 0
        self.version = "1.76.0"
        self._root = root
        self._generate = setup_py.generate_protos
        monkeypatch.setattr(setup_py, "ROOT", root)
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr(importlib.metadata, "version", lambda _: self.version)

    def _run(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess:
        assert cwd == self._root
        assert command[1:6] == [
            "-m",
            "grpc_tools.protoc",
            "-Iproto",
            "--python_out=.",
            "--pyi_out=.",
        ]
        self.runs.append(command[6:])
        for name in command[6:]:
            for end in (".py", ".pyi"):
                path = self._root / f"{name.removesuffix('.proto')}_pb2{end}"
                path.write_text(f"{end} {self.version} {(self._root / 'proto' / name).read_text()}")
        return subprocess.CompletedProcess(command, self.status)

    def build(self) -> list[list[str]]:
        """Generates what is stale; returns the files given to each run of protoc."""
        self.runs.clear()
        self._generate()
        return list(self.runs)

    def texts(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.out.iterdir() if p.name != ".protos.sha256"}


@pytest.fixture
def protos(setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Protos:
    made = _Protos(tmp_path, setup_py, monkeypatch)
    (made.proto / "a.proto").write_text("A")
    (made.proto / "b.proto").write_text("B")
    assert made.build() == [["tf_fuse/v1/a.proto", "tf_fuse/v1/b.proto"]]
    return made


_BOTH_PROTOS = ["tf_fuse/v1/a.proto", "tf_fuse/v1/b.proto"]


def test_current_protos_are_kept(protos: _Protos) -> None:
    # A newer timestamp alone, as of a fresh checkout, says nothing.
    os.utime(protos.proto / "a.proto", (4e9, 4e9))
    assert protos.build() == []
    assert protos.texts() == {
        "a_pb2.py": ".py 1.76.0 A",
        "a_pb2.pyi": ".pyi 1.76.0 A",
        "b_pb2.py": ".py 1.76.0 B",
        "b_pb2.pyi": ".pyi 1.76.0 B",
    }


def test_changed_proto_with_an_old_timestamp_is_generated_anew(protos: _Protos) -> None:
    (protos.proto / "a.proto").write_text("A2")
    os.utime(protos.proto / "a.proto", (0, 0))
    assert protos.build() == [_BOTH_PROTOS]
    assert protos.texts()["a_pb2.py"] == ".py 1.76.0 A2"
    assert protos.build() == []


def test_other_protoc_generates_anew(protos: _Protos) -> None:
    protos.version = "1.78.0"
    assert protos.build() == [_BOTH_PROTOS]
    assert protos.texts()["b_pb2.pyi"] == ".pyi 1.78.0 B"
    assert protos.build() == []


def test_missing_output_is_generated_anew(protos: _Protos) -> None:
    (protos.out / "b_pb2.pyi").unlink()
    assert protos.build() == [_BOTH_PROTOS]
    assert "b_pb2.pyi" in protos.texts()


def test_outputs_of_a_removed_proto_are_removed(protos: _Protos) -> None:
    kept = protos.out / "hand_written.py"
    kept.write_text("")
    (protos.proto / "a.proto").unlink()
    assert protos.build() == [["tf_fuse/v1/b.proto"]]
    assert sorted(protos.texts()) == ["b_pb2.py", "b_pb2.pyi", "hand_written.py"]


def test_outputs_of_a_failed_protoc_do_not_pass_for_current(
    protos: _Protos, setup_py: ModuleType
) -> None:
    text = (protos.proto / "a.proto").read_text()
    (protos.proto / "a.proto").write_text("broken")
    protos.status = 1
    with pytest.raises(setup_py.BuildError, match="protoc failed"):
        protos.build()
    # What was half written is not taken for what the former source gave.
    (protos.proto / "a.proto").write_text(text)
    protos.status = 0
    assert protos.build() == [_BOTH_PROTOS]
    assert protos.texts()["a_pb2.py"] == ".py 1.76.0 A"


def test_other_protoc_is_an_error_with_both_versions(tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    if cmake is None:
        pytest.skip("cmake is not installed here")
    folder = importlib.util.find_spec("tensorflow").submodule_search_locations[0]  # type: ignore
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho libprotoc 29.0\n")
    python.chmod(0o755)
    done = subprocess.run(
        [cmake, "-S", str(ROOT / "cc"), "-B", str(tmp_path / "build")]
        + [f"-DPython3_EXECUTABLE={python}", f"-DTENSORFLOW_DIR={folder}"],
        text=True,
        capture_output=True,
    )
    assert done.returncode == 1
    # CMake breaks long lines.
    assert (
        "protoc and TensorFlow's protobuf differ: grpc_tools has 'libprotoc 29.0', TensorFlow in "
        f"{folder} was built with protobuf 6.31.1, which needs 'libprotoc 31.1'. Install the "
        'matching one: python -m pip install "grpcio-tools>=1.74,<1.79"'
    ) in " ".join(done.stderr.split())
