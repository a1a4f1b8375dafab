# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The library that the build leaves: exported symbols, what it needs, build_info.json."""

import importlib.metadata
import json
import re
import shutil
import subprocess

import pytest

from tests.unit.packaging.installed import BOTH, LIBRARY, MINOR, installed


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (Debian package binutils)")
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


# --- The library ---------------------------------------------------------------------------------


def test_only_our_c_functions_are_exported() -> None:
    lines = _output("nm", "-D", "--defined-only", str(LIBRARY)).splitlines()
    symbols = [(kind, name) for _, kind, name in map(str.split, lines)]
    assert ("T", "tf_fuse_version") in symbols
    assert [
        s for s in symbols if s[0] != "T" or not re.fullmatch(r"tf_fuse_[a-z0-9_]+", s[1])
    ] == []


def test_library_needs_both_parts_of_tensorflow_and_no_second_protobuf() -> None:
    dynamic = _output("readelf", "--dynamic", "--wide", str(LIBRARY))
    needed = set(re.findall(r"\(NEEDED\) .*\[(.*)\]", dynamic))
    tensorflow = {name for name in needed if "tensorflow" in name}
    assert tensorflow == {"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"}
    system = ("libstdc++.so", "libm.so", "libgcc_s.so", "libc.so", "ld-linux", "libpthread.so")
    assert [name for name in needed - tensorflow if not name.startswith(system)] == []
    # Nothing of the build machine gets into the library's search path.
    paths = re.findall(r"\((?:RUNPATH|RPATH)\) .*\[(.*)\]", dynamic)
    assert paths == ["$ORIGIN/../../../tensorflow"]


def test_library_needs_no_newer_glibc_than_tensorflow() -> None:
    symbols = _output("objdump", "-T", str(LIBRARY))
    for name, newest in {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}.items():
        versions = re.findall(rf"\({name}_([\d.]+)\)", symbols)
        assert versions, name
        assert max(tuple(map(int, version.split("."))) for version in versions) <= newest


def test_build_info_describes_this_environment() -> None:
    info = json.loads((LIBRARY.parent / "build_info.json").read_text())
    assert sorted(info) == [
        "classes",
        "compiler",
        "cxx11_abi",
        "protobuf",
        "tensorflow",
        "tensorflow_distribution",
        "tensorflow_git_version",
        "tf_fuse",
    ]
    assert info["tf_fuse"] == importlib.metadata.version("tf_fuse")
    assert info["tensorflow"] in installed().values()
    assert info["tensorflow_distribution"] in BOTH
    assert info["tensorflow_git_version"].startswith(f"v{MINOR}.")
    assert info["cxx11_abi"] == 1
    assert info["protobuf"] == {"2.20": "5.28.3", "2.21": "6.31.1"}[MINOR]
    assert re.fullmatch(r"(GNU|Clang) \d+(\.\d+)+", info["compiler"])
