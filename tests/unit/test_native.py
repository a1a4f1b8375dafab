# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The checks in tf_fuse/_native.py: three ways to fail, each before anything native is loaded."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests import forking, scripted

PACKAGE = Path(importlib.util.find_spec("tf_fuse").origin).parent  # type: ignore[union-attr]
REBUILD = "python -m pip install --force-reinstall --no-deps ."
# Imports the package, prints the error, and proves that TensorFlow has not been loaded.
IMPORT = """
import sys
from tests import scripted
{setup}
try:
    import tf_fuse
except ImportError as error:
    lines = [type(error).__name__, *str(error).splitlines(), str("tensorflow" in sys.modules)]
else:
    lines = ["imported from " + tf_fuse.__file__]
scripted.give(lines)
"""


def _add_library(lib: Path, version: str) -> Path:
    """Makes the folder of a library for a version of TensorFlow; returns it."""
    folder = lib / ".".join(version.split(".")[:2])
    folder.mkdir()
    info = {"tf_fuse": "1.0", "tensorflow": version}
    (folder / "build_info.json").write_text(json.dumps(info))
    (folder / "libtf_fuse.so").write_bytes(b"not an ELF file")
    return folder


@pytest.fixture
def native(tmp_path: Path) -> ModuleType:
    """A private copy of the module, with a well-formed _lib folder in tmp_path."""
    spec = importlib.util.spec_from_file_location("native_under_test", PACKAGE / "_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _add_library(tmp_path, "2.21.0")
    module._LIB_DIR = tmp_path
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """A function that sets which TensorFlow distributions seem to be installed."""

    def install(versions: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name in versions:
                return versions[name]
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


@pytest.fixture
def import_copy(tmp_path: Path, isolated_env: dict[str, str]) -> Callable[..., list[str]]:
    """A function that imports a copy of the package in a child process, after a change to it."""
    copy = tmp_path / "copy" / "tf_fuse"
    minor = _here().rsplit(".", 1)[0]

    def run(change: Callable[[Path], None] = lambda _: None, setup: str = "") -> list[str]:
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "_lib"))
        # A link: the copy runs the checks, the library itself is not what they look at.
        lib = copy / "_lib" / minor
        lib.mkdir(parents=True)
        shutil.copy(PACKAGE / "_lib" / minor / "build_info.json", lib)
        os.symlink(PACKAGE / "_lib" / minor / "libtf_fuse.so", lib / "libtf_fuse.so")
        change(lib)
        command = [sys.executable, "-c", IMPORT.format(setup=setup)]
        # (A process that is forked would have TensorFlow.)
        env = isolated_env | {"PYTHONPATH": str(copy.parent), forking.VARIABLE: "0"}
        lines = scripted.result_of(command, env, cwd=tmp_path)
        return [line.replace(str(copy), "PACKAGE") for line in lines]

    return run


def test_intact_copy_imports(import_copy: Callable[..., list[str]]) -> None:
    # The control for the tests below: only the change they make is what fails.
    assert import_copy() == ["imported from PACKAGE/__init__.py"]


def test_version_mismatch_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    name = next(n for n in ("tensorflow", "tensorflow-cpu") if _version(n))

    def change(lib: Path) -> None:
        info = json.loads((lib / "build_info.json").read_text())
        (lib / "build_info.json").write_text(json.dumps({**info, "tensorflow": "2.19.99"}))

    assert import_copy(change) == [
        "VersionMismatchError",
        f"tf_fuse {importlib.metadata.version('tf_fuse')} was built against TensorFlow 2.19.99, "
        f"but {name} {_here()} is installed in this environment. Install the one it was built "
        f'against: python -m pip install "{name}==2.19.99"; or rebuild tf_fuse in its source '
        f"folder: {REBUILD}",
        "False",
    ]


def test_missing_library_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    minor = _here().rsplit(".", 1)[0]
    assert import_copy(lambda lib: (lib / "libtf_fuse.so").unlink()) == [
        "LibraryMissingError",
        f"the native library of tf_fuse is missing: PACKAGE/_lib/{minor}/libtf_fuse.so does not "
        f"exist. Build it in tf_fuse's source folder: {REBUILD}",
        "False",
    ]


def test_source_tree_without_build_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    minor = _here().rsplit(".", 1)[0]
    assert import_copy(lambda lib: shutil.rmtree(lib.parent)) == [
        "LibraryMissingError",
        f"the native library of tf_fuse is missing: PACKAGE/_lib/{minor}/build_info.json does not "
        f"exist. Build it in tf_fuse's source folder: {REBUILD}",
        "False",
    ]


def test_unsupported_platform_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    assert import_copy(setup="import platform; platform.machine = lambda: 'riscv64'") == [
        "UnsupportedPlatformError",
        "tf_fuse runs on linux x86_64 and aarch64 only; this is linux riscv64. Run it in a "
        "container instead: docker run --platform linux/amd64 -it python:3.11",
        "False",
    ]


def test_old_python_is_an_unsupported_platform(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_MINIMUM_PYTHON", (99, 0))
    with pytest.raises(native.UnsupportedPlatformError) as caught:
        native.check_platform()
    assert str(caught.value) == (
        f"tf_fuse needs CPython 3.10 or newer; this is CPython {sys.version.split()[0]}. "
        "Make an environment with a newer one: python3.11 -m venv .venv"
    )


def test_no_tensorflow_at_all(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({})
    with pytest.raises(native.VersionMismatchError) as caught:
        native.check()
    assert str(caught.value) == (
        "tf_fuse 1.0 was built against TensorFlow 2.21.0, but no TensorFlow is installed in this "
        'environment. Install it: python -m pip install "tensorflow==2.21.0"'
    )


def test_unknown_minor_version_is_not_offered_a_rebuild(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({"tensorflow-cpu": "2.22.0"})
    with pytest.raises(native.VersionMismatchError) as caught:
        native.check()
    assert str(caught.value) == (
        "tf_fuse 1.0 was built against TensorFlow 2.21.0, but tensorflow-cpu 2.22.0 is installed "
        "in this environment. Install the one it was built against: "
        'python -m pip install "tensorflow-cpu==2.21.0"'
    )


def test_known_minor_version_without_a_library_is_offered_a_rebuild(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({"tensorflow": "2.20.0"})
    with pytest.raises(native.VersionMismatchError) as caught:
        native.check()
    assert str(caught.value).endswith(f"; or rebuild tf_fuse in its source folder: {REBUILD}")


def test_one_of_several_libraries_is_chosen(
    native: ModuleType, installed: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    folders = {v: _add_library(tmp_path, v) for v in ("2.9.0", "2.20.0")}
    assert native.library_versions() == ["2.9", "2.20", "2.21"]
    installed({"tensorflow-cpu": "2.20.3"})
    assert native.library_path() == folders["2.20.0"] / "libtf_fuse.so"
    assert native.check() == {"tf_fuse": "1.0", "tensorflow": "2.20.0"}


def test_unknown_version_names_the_libraries_there_are(
    native: ModuleType, installed: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    _add_library(tmp_path, "2.20.0")
    installed({"tensorflow": "2.22.0"})
    with pytest.raises(native.VersionMismatchError) as caught:
        native.check()
    assert str(caught.value) == (
        "tf_fuse 1.0 was built against TensorFlow 2.21.0 (this installation holds libraries for "
        "2.20 and 2.21), but tensorflow 2.22.0 is installed in this environment. Install the one "
        'it was built against: python -m pip install "tensorflow==2.21.0"'
    )


def test_second_distribution_is_compared_too(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({"tensorflow": "2.21.0", "tensorflow-cpu": "2.22.1"})
    with pytest.raises(native.VersionMismatchError, match=r"but tensorflow-cpu 2\.22\.1 is inst"):
        native.check()


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_either_distribution_passes(
    name: str, native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({name: "2.21.7"})
    assert native.check() == {"tf_fuse": "1.0", "tensorflow": "2.21.0"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSONDecodeError: Expecting property name enclosed in double quotes: "),
        ("[]", "TypeError: "),
        ('{"tf_fuse": "1.0"}', "KeyError: 'tensorflow'"),
    ],
)
def test_damaged_build_info(content: str, reason: str, native: ModuleType, tmp_path: Path) -> None:
    info = tmp_path / "2.21" / "build_info.json"
    info.write_text(content)
    with pytest.raises(native.LibraryMissingError) as caught:
        native.check()
    start = f"the native library of tf_fuse is missing: {info} is damaged ({reason}"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(f"Build it in tf_fuse's source folder: {REBUILD}")


def test_file_that_is_no_library(native: ModuleType, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "2.21")
    folder = _add_library(tmp_path, _here())
    with pytest.raises(native.LibraryMissingError) as caught:
        native.load()
    library = folder / "libtf_fuse.so"
    assert str(caught.value).startswith(
        f"the native library of tf_fuse is missing: it cannot be loaded: {library}: "
    )


def test_library_answers_with_the_package_version() -> None:
    from tf_fuse import _native

    version = importlib.metadata.version("tf_fuse")
    assert _native.library().tf_fuse_version() == version.encode()
    assert _native.library() is _native.library()
    assert _native.load() is _native.load()


def test_the_three_errors_are_import_errors_and_exported() -> None:
    import tf_fuse

    for name in ("VersionMismatchError", "LibraryMissingError", "UnsupportedPlatformError"):
        error = getattr(tf_fuse, name)
        assert error.__mro__[1] is ImportError
        assert name in tf_fuse.__all__


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _here() -> str:
    """Returns the version of the TensorFlow in this environment."""
    return _version("tensorflow") or importlib.metadata.version("tensorflow-cpu")
