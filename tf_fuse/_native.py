# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check platform and versions, then loads the native library.

The plugin subclasses TensorFlow's C++ classes, so it works only with the minor version of
TensorFlow that it was built against; an installation holds one library for each of one or several
of them. All versions are compared before a library is loaded: a wrong library could crash the
process instead of raising.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

_LIB_DIR = Path(__file__).resolve().parent / "_lib"
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
# The minor versions of TensorFlow that the sources build against.
_SUPPORTED = ("2.20", "2.21")
_MINIMUM_PYTHON = (3, 10)
_MACHINES = ("x86_64", "aarch64")
_REBUILD = "python -m pip install --force-reinstall --no-deps ."

_lock = threading.Lock()
_module: ModuleType | None = None
_library: ctypes.CDLL | None = None


class VersionMismatchError(ImportError):
    """The library was built against another TensorFlow, or for another tf_fuse."""


class LibraryMissingError(ImportError):
    """The native library is missing or is not a loadable file."""


class UnsupportedPlatformError(ImportError):
    """No library can be built for this operating system, processor or Python."""


def library_path() -> Path:
    """Return the path of the libtf_fuse.so for the installed TensorFlow, if it exists or not."""
    return _folder() / "libtf_fuse.so"


def library_versions() -> list[str]:
    """Return the minor versions of TensorFlow that this installation holds a library for."""
    found = [path.name for path in _LIB_DIR.glob("[0-9]*.[0-9]*") if path.is_dir()]
    return sorted(found, key=lambda name: tuple(map(int, name.split("."))))


def _folder() -> Path:
    """Return the folder for the installed TensorFlow, or else for the newest one there is."""
    there = library_versions() or list(_SUPPORTED)
    installed = [_minor(version) for version in tensorflow_versions().values()]
    return _LIB_DIR / next((minor for minor in installed if minor in there), there[-1])


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_platform() -> None:
    """Check operating system, processor and Python.

    Raises:
        UnsupportedPlatformError: this is not CPython 3.10 or newer on Linux, on x86-64 or aarch64.
    """
    system, machine = sys.platform, platform.machine()
    if system != "linux" or machine not in _MACHINES:
        raise UnsupportedPlatformError(
            f"tf_fuse runs on linux {' and '.join(_MACHINES)} only; this is {system} {machine}. "
            "Run it in a container instead: docker run --platform linux/amd64 -it python:3.11"
        )
    implementation = platform.python_implementation()
    if implementation != "CPython" or sys.version_info < _MINIMUM_PYTHON:
        raise UnsupportedPlatformError(
            f"tf_fuse needs CPython 3.10 or newer; this is {implementation} "
            f"{platform.python_version()}. Make an environment with a newer one: "
            "python3.11 -m venv .venv"
        )


def build_info() -> dict[str, Any]:
    """Return what the library was built with.

    Returns:
        A dict with the keys ``tf_fuse``, ``tensorflow``, ``tensorflow_distribution``,
        ``tensorflow_git_version``, ``cxx11_abi`` (0 or 1), ``compiler``, ``protobuf`` and
        ``classes`` (see `_class_layouts.digests`).

    Raises:
        LibraryMissingError: the file that the build writes beside the library is missing or
            damaged.
    """
    path = _folder() / "build_info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        return {**info, "tf_fuse": info["tf_fuse"], "tensorflow": info["tensorflow"]}
    except FileNotFoundError as error:
        raise _missing(f"{path} does not exist") from error
    except (KeyError, TypeError, ValueError) as error:
        raise _missing(f"{path} is damaged ({type(error).__name__}: {error})") from error


def tensorflow_versions() -> dict[str, str]:
    """Return the version of each TensorFlow distribution in this environment, without import."""
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def check() -> dict[str, Any]:
    """Check platform, library and versions; import and load nothing.

    Returns:
        `build_info()`.

    Raises:
        UnsupportedPlatformError: see `check_platform`.
        LibraryMissingError: the library or its build_info.json is missing.
        VersionMismatchError: no library here was built against the minor version of the
            TensorFlow in this environment.
    """
    check_platform()
    info = build_info()
    if not library_path().is_file():
        raise _missing(f"{library_path()} does not exist")
    versions = tensorflow_versions()
    if not versions:
        raise VersionMismatchError(
            f"tf_fuse {info['tf_fuse']} was built against TensorFlow {info['tensorflow']}, but no "
            "TensorFlow is installed in this environment. Install it: "
            f'python -m pip install "tensorflow=={info["tensorflow"]}"'
        )
    for name, version in versions.items():
        _compare(info, name, version)
    return info


def load() -> ModuleType:
    """Load the library into TensorFlow, once per process.

    Returns:
        The module that ``tf.load_op_library`` returns: the Python wrappers of our ops.

    Raises:
        UnsupportedPlatformError: see `check_platform`.
        LibraryMissingError: the library is missing or is not a loadable file.
        VersionMismatchError: TensorFlow's minor version is not the one that the library was built
            against.
    """
    global _module
    with _lock:
        if _module is None:
            info = check()
            import tensorflow as tf

            # The metadata may be wrong (two distributions in one folder, a source tree on the
            # path); the version in the package is not.
            _compare(info, "tensorflow", tf.__version__)
            try:
                _module = tf.load_op_library(str(library_path()))
            except tf.errors.OpError as error:
                if "undefined symbol" in error.message:
                    raise VersionMismatchError(
                        f"{library_path()} was built against TensorFlow {info['tensorflow']} "
                        f"({info.get('tensorflow_git_version')}) and does not fit the installed "
                        f"{tf.__version__} ({tf.version.GIT_VERSION}): {error.message}. "
                        f"Rebuild tf_fuse in its source folder: {_REBUILD}"
                    ) from error
                raise _missing(f"it cannot be loaded: {error.message}") from error
            # The library counts in this file; programs that this one starts do not.
            os.environ.pop("TF_FUSE_STEPS_FILE", None)
        return _module


def library() -> ctypes.CDLL:
    """Return the C functions of the library, loading it first if necessary.

    Raises:
        ImportError: one of the three that `load` raises.
    """
    global _library
    load()
    with _lock:
        if _library is None:
            _library = ctypes.CDLL(str(library_path()))
            _library.tf_fuse_version.restype = ctypes.c_char_p
            _library.tf_fuse_version.argtypes = []
        return _library


def _missing(reason: str) -> LibraryMissingError:
    """Make the error for a library that is not usable, with the command that builds it."""
    return LibraryMissingError(
        f"the native library of tf_fuse is missing: {reason}. "
        f"Build it in tf_fuse's source folder: {_REBUILD}"
    )


def _compare(info: dict[str, Any], name: str, version: str) -> None:
    """Raise VersionMismatchError unless the installed version is of the minor one built against."""
    if _minor(version) == _minor(info["tensorflow"]):
        return
    there = library_versions()
    others = f" (this installation holds libraries for {' and '.join(there)})" * (len(there) > 1)
    remedy = (
        "Install the one it was built against: "
        f'python -m pip install "{name}=={info["tensorflow"]}"'
    )
    if _minor(version) in _SUPPORTED:
        remedy += f"; or rebuild tf_fuse in its source folder: {_REBUILD}"
    raise VersionMismatchError(
        f"tf_fuse {info['tf_fuse']} was built against TensorFlow {info['tensorflow']}{others}, "
        f"but {name} {version} is installed in this environment. {remedy}"
    )
