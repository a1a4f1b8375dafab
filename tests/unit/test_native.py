# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The checks in tf_fuse/_native.py: three ways to fail, each before anything native is loaded."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = Path(importlib.util.find_spec("tf_fuse").origin).parent  # type: ignore[union-attr]
REBUILD = "python -m pip install --force-reinstall --no-deps ."
# Imports the package, prints the error, and proves that TensorFlow has not been loaded.
IMPORT = """
import sys
{setup}
try:
    import tf_fuse
except ImportError as error:
    print(type(error).__name__)
    print(error)
    print("tensorflow" in sys.modules)
else:
    print("imported from", tf_fuse.__file__)
"""


@pytest.fixture
def native(tmp_path: Path) -> ModuleType:
    """A private copy of the module, with a well-formed _lib folder in tmp_path."""
    spec = importlib.util.spec_from_file_location("native_under_test", PACKAGE / "_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "build_info.json").write_text('{"tf_fuse": "1.0", "tensorflow": "2.21.0"}')
    (tmp_path / "libtf_fuse.so").write_bytes(b"not an ELF file")
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

    def run(change: Callable[[Path], None] = lambda _: None, setup: str = "") -> list[str]:
        ignore = shutil.ignore_patterns("__pycache__", "libtf_fuse.so")
        shutil.copytree(PACKAGE, copy, ignore=ignore)
        # A link: the copy runs the checks, the library itself is not what they look at.
        os.symlink(PACKAGE / "_lib" / "libtf_fuse.so", copy / "_lib" / "libtf_fuse.so")
        change(copy / "_lib")
        done = subprocess.run(
            [sys.executable, "-c", IMPORT.format(setup=setup)],
            env={**isolated_env, "PYTHONPATH": str(copy.parent)},
            cwd=tmp_path,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(str(copy), "PACKAGE").splitlines()

    return run


def test_intact_copy_imports(import_copy: Callable[..., list[str]]) -> None:
    # The control for the tests below: only the change they make is what fails.
    assert import_copy() == ["imported from PACKAGE/__init__.py"]


def test_version_mismatch_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    names = [n for n in ("tensorflow", "tensorflow-cpu") if _version(n)]
    name, version = names[0], _version(names[0])

    def change(lib: Path) -> None:
        info = json.loads((lib / "build_info.json").read_text())
        (lib / "build_info.json").write_text(json.dumps({**info, "tensorflow": "2.21.99"}))

    assert import_copy(change) == [
        "VersionMismatchError",
        f"tf_fuse {importlib.metadata.version('tf_fuse')} was built against TensorFlow 2.21.99, "
        f"but {name} {version} is installed in this environment. Install the one it was built "
        f'against: python -m pip install "{name}==2.21.99"; or rebuild tf_fuse in its source '
        f"folder: {REBUILD}",
        "False",
    ]


def test_missing_library_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    assert import_copy(lambda lib: (lib / "libtf_fuse.so").unlink()) == [
        "LibraryMissingError",
        "the native library of tf_fuse is missing: PACKAGE/_lib/libtf_fuse.so does not exist. "
        f"Build it in tf_fuse's source folder: {REBUILD}",
        "False",
    ]


def test_source_tree_without_build_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    assert import_copy(shutil.rmtree) == [
        "LibraryMissingError",
        "the native library of tf_fuse is missing: PACKAGE/_lib/build_info.json does not exist. "
        f"Build it in tf_fuse's source folder: {REBUILD}",
        "False",
    ]


def test_unsupported_platform_stops_the_import(import_copy: Callable[..., list[str]]) -> None:
    assert import_copy(setup="import platform; platform.machine = lambda: 'aarch64'") == [
        "UnsupportedPlatformError",
        "tf_fuse runs on linux x86_64 only; this is linux aarch64. Run it in a container instead: "
        "docker run --platform linux/amd64 -it python:3.11",
        "False",
    ]


def test_old_python_is_an_unsupported_platform(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_MINIMUM_PYTHON", (99, 0))
    with pytest.raises(native.UnsupportedPlatformError) as caught:
        native.check_platform()
    assert str(caught.value) == (
        f"tf_fuse needs CPython 3.11 or newer; this is CPython {sys.version.split()[0]}. "
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


def test_other_minor_version_is_not_offered_a_rebuild(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({"tensorflow-cpu": "2.20.0"})
    with pytest.raises(native.VersionMismatchError) as caught:
        native.check()
    assert str(caught.value) == (
        "tf_fuse 1.0 was built against TensorFlow 2.21.0, but tensorflow-cpu 2.20.0 is installed "
        "in this environment. Install the one it was built against: "
        'python -m pip install "tensorflow-cpu==2.21.0"'
    )


def test_second_distribution_is_compared_too(
    native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.1"})
    with pytest.raises(native.VersionMismatchError, match=r"but tensorflow-cpu 2\.21\.1 is inst"):
        native.check()


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_either_distribution_passes(
    name: str, native: ModuleType, installed: Callable[[dict[str, str]], None]
) -> None:
    installed({name: "2.21.0"})
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
    (tmp_path / "build_info.json").write_text(content)
    with pytest.raises(native.LibraryMissingError) as caught:
        native.check()
    start = (
        "the native library of tf_fuse is missing: "
        f"{tmp_path / 'build_info.json'} is damaged ({reason}"
    )
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(f"Build it in tf_fuse's source folder: {REBUILD}")


def test_file_that_is_no_library(native: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "build_info.json").write_text(
        json.dumps({"tf_fuse": "1.0", "tensorflow": _version("tensorflow") or _cpu_version()})
    )
    with pytest.raises(native.LibraryMissingError) as caught:
        native.load()
    library = tmp_path / "libtf_fuse.so"
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


def _cpu_version() -> str:
    return importlib.metadata.version("tensorflow-cpu")
