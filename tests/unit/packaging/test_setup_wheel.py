# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The wheel that the checkout builds: its tag, its files and what it requires."""

import email
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.packaging.installed import BOTH, MINOR, ROOT, installed

# --- The wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that the checkout builds against the TensorFlow of this environment."""
    required = {"cmake": shutil.which("cmake"), "ninja": shutil.which("ninja")}
    required["grpc_tools"] = importlib.util.find_spec("grpc_tools") and "found"
    bin_dir = Path(sys.executable).parent
    missing = [n for n, path in required.items() if not path and not (bin_dir / n).exists()]
    if missing:
        pytest.skip(f"build tools are not installed here: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # A copy: the build must not see, or leave, anything in the checkout but the compiled objects,
    # which are kept because they depend on nothing but the sources that are copied.
    ignore = shutil.ignore_patterns(
        ".git", ".venv", "build", "_lib", "*_pb2.py*", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, source, ignore=ignore)
    # One file instead of the whole library: what is tested here is the packaging.
    for path in sorted((source / "cc").rglob("*.cc")):
        if path.name != "version.cc":
            path.unlink()
    (source / "cc" / "version.cc").write_text(
        '#include "tf_fuse/v1/fuse_recv.pb.h"\n'
        'extern "C" __attribute__((visibility("default"))) const char* tf_fuse_version() {\n'
        "  return TF_FUSE_VERSION;\n}\n"
    )
    # And one generated file, which it includes.
    listed = source / "cc" / "CMakeLists.txt"
    text, wanted = listed.read_text(), 'list(FILTER protos INCLUDE REGEX "/fuse_recv[.]proto$")'
    text, count = re.subn(r"list\(FILTER protos EXCLUDE .*\)", lambda _: wanted, text)
    assert count == 1
    listed.write_text(text)
    # A module that a former build left: it is gone from the sources and must not be packed.
    for stale in (source / "build").glob("lib*"):
        raise AssertionError(f"{stale} was copied")
    tag = f"lib.linux-{platform.machine()}-cpython-{sys.version_info.major}{sys.version_info.minor}"
    stale = source / "build" / tag / "tf_fuse" / "deleted_module.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    # Nor may what was generated from a file that is gone.
    for name in ("deleted_pb2.py", "deleted_pb2.pyi"):
        (source / "tf_fuse" / "v1" / name).write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        + ["--wheel-dir", str(folder), str(source)],
        env={k: v for k, v in os.environ.items() if not k.startswith("TF_FUSE_")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    # In the source folder only: test_wheel_holds_the_package_and_nothing_else.
    assert (source / "tf_fuse" / "v1" / ".protos.sha256").is_file()
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_is_tagged_for_the_platform_and_any_python(wheel: zipfile.ZipFile) -> None:
    version = importlib.metadata.version("tf_fuse")
    assert (
        Path(str(wheel.filename)).name
        == f"tf_fuse-{version}-py3-none-linux_{platform.machine()}.whl"
    )


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tf_fuse").rglob("*.py")
        if not path.name.endswith("_pb2.py")
    }
    protos = [path.stem for path in (ROOT / "proto" / "tf_fuse" / "v1").glob("*.proto")]
    generated = {f"tf_fuse/v1/{stem}_pb2{end}" for stem in protos for end in (".py", ".pyi")}
    native = {f"tf_fuse/_lib/{MINOR}/{n}" for n in ("libtf_fuse.so", "build_info.json")}
    assets = {str(p.relative_to(ROOT)) for p in (ROOT / "tf_fuse/report/assets").iterdir()}
    assert len(assets) == 8
    assert names == sources | generated | native | assets | {"tf_fuse/py.typed"}
    mode = wheel.getinfo(f"tf_fuse/_lib/{MINOR}/libtf_fuse.so").external_attr >> 16
    assert stat.S_IMODE(mode) == 0o755


def test_wheel_requires_the_tensorflow_that_is_here(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    requires = [r for r in metadata.get_all("Requires-Dist", []) if r.startswith("tensorflow")]
    here = next(name for name in BOTH if name in installed())
    low, high = {"2.20": (">=2.20", "<2.21"), "2.21": (">=2.21", "<2.22")}[MINOR]
    assert [r.replace(" ", "") for r in requires if "extra" not in r] in (
        [f"{here}{high},{low}"],
        [f"{here}{low},{high}"],
    )
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND ISC"
    licences = metadata.get_all("License-File", [])
    assert licences == ["LICENSE", "third_party/d3/LICENSE"]
    for path in licences:
        packed = wheel.read(f"{name.removesuffix('METADATA')}licenses/{path}")
        assert packed == (ROOT / path).read_bytes()
    assert metadata["Requires-Python"] == "<3.14,>=3.10"
    extras = metadata.get_all("Provides-Extra", [])
    assert sorted(extras) == [
        "cpu",
        "docs",
        "gloo",
        "gpu",
        "layout",
        "prometheus",
        "release",
        "report",
        "scale",
        "test",
        "viewers",
    ]
