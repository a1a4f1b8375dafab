# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Build the native library with CMake against the TensorFlow of the target environment.

Static metadata lives in pyproject.toml. This file decides what pyproject.toml cannot: which
TensorFlow distribution is required and built against, and how ``cc/`` becomes
``tf_fuse/_lib/2.21/libtf_fuse.so``, whose folder names TensorFlow's minor version.

Environment variables:
    TF_FUSE_TENSORFLOW: ``tensorflow`` or ``tensorflow-cpu``; the distribution to require. By
        default the one that the environment has, and ``tensorflow`` where it has none.
    TF_FUSE_PYTHONS: Pythons, joined by ``:``, that have one TensorFlow each. The build then holds
        a library for every one of them, and requires none: `make wheel` sets this.
    TF_FUSE_FOLDERS: with TF_FUSE_PYTHONS, for another processor than this one: for each of them
        the folder of the package ``tensorflow``, of the same version, that is compiled and linked
        against. CXX names the cross-compiler. The libraries are then only packed.
    CMAKE_BUILD_PARALLEL_LEVEL: compile jobs. By default one per core, fewer if memory is short.
    CXX: the C++ compiler. By default g++, then clang++, then c++.

``python setup.py build_programs`` builds the transport's fuzzers and its test of races.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# An isolated build does not put the folder of this file on the path.
sys.path.insert(0, str(ROOT / "cc"))
from find_tensorflow import (  # noqa: E402
    DISTRIBUTIONS,
    PROTOC,
    RANGES,
    SMALLEST,
    TENSORFLOW_RANGE,
    BuildError,
    TensorFlow,
)

# The largest translation units hold about 2 GiB while they compile.
BYTES_PER_JOB = 2 << 30
LIBRARY = "libtf_fuse.so"


def say(message: str) -> None:
    """Print progress at once, also into a pipe."""
    print(f"tf_fuse: {message}", flush=True)


def check_platform() -> None:
    """Raise BuildError unless one of TensorFlow's wheels for Linux can be here."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise BuildError(f"needs Linux on x86_64 or aarch64; this is {sys.platform} on {machine}.")


def tool(name: str, remedy: str) -> str:
    """Return the path of a program, looked for in this environment's scripts and on PATH."""
    found = _find(name)
    if not found:
        raise BuildError(f"{name} was not found. Install it:\n    {remedy}")
    return found


def _find(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    return shutil.which(name, path=path)


def compiler(names: Sequence[str] = ("g++", "clang++", "c++")) -> str:
    """Return the C++ compiler: $CXX, or the first of the names that is there."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else names
    for name in wanted:
        if found := shutil.which(name):
            return found
    raise BuildError(
        f"no C++ compiler was found (looked for {', '.join(wanted)}). Install one:\n"
        "    sudo apt-get install g++"
    )


def jobs() -> int:
    """Return the number of compile jobs: one per usable core, as far as memory goes."""
    if level := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL"):
        return int(level)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    return max(1, min(len(os.sched_getaffinity(0)), available // BYTES_PER_JOB))


def generate_protos() -> None:
    """Generate tf_fuse/v1/*_pb2.py and .pyi from proto/ where they are missing or stale.

    What they were made of is kept beside them as a hash: timestamps say nothing of a source that
    was checked out or unpacked, nor of another protoc. Outputs whose source is gone are removed.
    """
    names = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto").rglob("*.proto"))
    stems = [ROOT / name.removesuffix(".proto") for name in names]
    outputs = {Path(f"{stem}_pb2{end}") for stem in stems for end in (".py", ".pyi")}
    for path in sorted((ROOT / "tf_fuse").rglob("*_pb2.py*")):
        if path.suffix in (".py", ".pyi") and path not in outputs:
            say(f"removing {path.relative_to(ROOT)}: its source is gone")
            path.unlink()
    stamp = ROOT / "tf_fuse" / "v1" / ".protos.sha256"
    digest = _protos_digest(names)
    known = stamp.read_text(encoding="ascii").strip() if stamp.exists() else ""
    if known == digest and all(path.exists() for path in outputs):
        return
    # What an interrupted or failed run leaves half written must not pass for current.
    stamp.unlink(missing_ok=True)
    say(f"generating Python protocol buffers: {', '.join(names)}")
    arguments = ["-Iproto", "--python_out=.", "--pyi_out=."]
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments, *names]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise BuildError(
            "protoc failed (its message stands above). If grpc_tools is missing:\n"
            '    python -m pip install "grpcio-tools>=1.74,<1.79"'
        )
    stamp.write_text(f"{digest}\n", encoding="ascii")


def _protos_digest(names: list[str]) -> str:
    """Return a hash of the sources, by name under proto/, and of the version of their compiler."""
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    hashes = [
        [name, hashlib.sha256((ROOT / "proto" / name).read_bytes()).hexdigest()] for name in names
    ]
    return hashlib.sha256(json.dumps([version, hashes]).encode()).hexdigest()


def targets() -> list[TensorFlow]:
    """Return what to build against: what TF_FUSE_PYTHONS names, or else what is installed."""
    if pythons := os.environ.get("TF_FUSE_PYTHONS"):
        named = [TensorFlow.of(python) for python in pythons.split(os.pathsep)]
        if not (folders := os.environ.get("TF_FUSE_FOLDERS")):
            return named
        pairs = zip(named, folders.split(os.pathsep), strict=True)
        return [tensorflow.of_folder(folder) for tensorflow, folder in pairs]
    found = TensorFlow.find()
    return [found] if found else []


class BuildPy(build_py):
    """Generates the Python protocol buffers before the packages are collected."""

    def run(self) -> None:
        """Run protoc where needed, then setuptools' own step."""
        generate_protos()
        if not self.editable_mode:
            # A module deleted since the last build would otherwise get into the wheel.
            shutil.rmtree(Path(self.build_lib) / "tf_fuse", ignore_errors=True)
        super().run()


class BuildNative(build_ext):
    """Builds cc/ with CMake into tf_fuse/_lib/, with a build_info.json beside the library."""

    def get_ext_filename(self, fullname: str) -> str:
        """Names the library itself: it is loaded by TensorFlow, not imported by Python."""
        return os.path.join(*fullname.split(".")) + ".so"

    def get_outputs(self) -> list[str]:
        """List the libraries and their build_info.json."""
        folders = [os.path.join(self.build_lib, "tf_fuse", "_lib", t.minor) for t in targets()]
        return [os.path.join(f, name) for f in folders for name in (LIBRARY, "build_info.json")]

    def run(self) -> None:
        """Configure, build and place the libraries with a build_info.json each."""
        for tensorflow in self._prepare():
            # Into the checkout, too, as the protocol buffers, if this machine can load them: its
            # tests and benchmarks put it before an installed tf_fuse.
            roots = {ROOT if self.inplace else Path(self.build_lib).resolve()}
            roots |= set() if tensorflow.foreign else {ROOT}
            libs = [root / "tf_fuse" / "_lib" for root in sorted(roots)]
            folder = self._build_folder(tensorflow)
            info = self._configure(tensorflow, folder, compiler())
            say(f"compiling cc/ with {jobs()} job(s) for TensorFlow {info['tensorflow']}")
            self._cmake("--build", str(folder), "--parallel", str(jobs()))
            text = json.dumps(info, indent=2, sort_keys=True) + "\n"
            for out in (lib / tensorflow.minor for lib in libs):
                out.mkdir(parents=True, exist_ok=True)
                _replace(out / LIBRARY, (folder / LIBRARY).read_bytes())
                _replace(out / "build_info.json", text.encode())
                built = f"{tensorflow.distribution} {info['tensorflow']}"
                say(f"built {out / LIBRARY} against {built}")

    def _prepare(self) -> list[TensorFlow]:
        """Check the platform, generate protocol buffers, and find what to build against."""
        check_platform()
        generate_protos()
        found = targets()
        if not found:
            raise BuildError(
                "TensorFlow is not installed. Install it first:\n    python -m pip install "
                f'"{SMALLEST}{TENSORFLOW_RANGE}"'
            )
        return found

    def _build_folder(self, tensorflow: TensorFlow) -> Path:
        """One folder per TensorFlow that stays; a temporary one for one that will be gone."""
        if not tensorflow.lasting:
            return Path(self.build_temp).resolve() / "native"
        digest = hashlib.sha256(str(tensorflow.folder).encode()).hexdigest()[:8]
        return ROOT / "build" / f"native-{digest}"

    def _configure(self, tensorflow: TensorFlow, folder: Path, cxx: str, *settings: str) -> dict:
        """Run CMake's configure step, from scratch if anything it rests on has changed."""
        library = (tensorflow.folder / "libtensorflow_cc.so.2").stat()
        fingerprint = {
            "source": str(ROOT),
            "classes": (ROOT / "tf_fuse" / "_class_layouts.py").read_text(encoding="utf-8"),
            "tensorflow": [str(tensorflow.folder), library.st_size, library.st_mtime_ns],
            "compiler": [cxx, os.stat(cxx).st_mtime_ns],
            "flags": os.environ.get("CXXFLAGS", ""),
        }
        record = folder / "fingerprint.json"
        known = json.loads(record.read_text()) if record.exists() else {}
        if known.get("fingerprint") != fingerprint:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            say(f"asking TensorFlow in {tensorflow.folder} how it was built")
            known = {"fingerprint": fingerprint, "tensorflow": tensorflow.describe()}
            record.write_text(json.dumps(known))
        described = known["tensorflow"]
        arguments = [
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'python -m pip install ninja')}",
            f"-DCMAKE_CXX_COMPILER={cxx}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DTF_FUSE_PROTOC={_find('protoc') or ''}",
            f"-DTENSORFLOW_DIR={tensorflow.folder}",
            f"-DTENSORFLOW_VERSION={described['version']}",
            f"-DTENSORFLOW_DEFINITIONS={';'.join(described['flags'])}",
            f"-DTF_FUSE_VERSION={self.distribution.get_version()}",
            *settings,
        ]
        if ccache := shutil.which("ccache"):
            arguments.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
        self._cmake("-S", str(ROOT / "cc"), "-B", str(folder), "-G", "Ninja", *arguments)
        return {
            "tf_fuse": self.distribution.get_version(),
            "tensorflow": described["version"],
            "tensorflow_distribution": tensorflow.distribution,
            "tensorflow_git_version": described["git_version"],
            "cxx11_abi": described["cxx11_abi"],
            "classes": described["classes"],
            "compiler": (folder / "compiler.txt").read_text().strip(),
            "protobuf": (folder / "protobuf.txt").read_text().strip(),
        }

    def _cmake(self, *arguments: str) -> None:
        """Run CMake with its output passed on line by line."""
        command = [tool("cmake", 'python -m pip install "cmake>=3.24,<5"'), *arguments]
        if subprocess.run(command).returncode:
            raise BuildError(f"the build failed (its message stands above): {' '.join(command)}")


class BuildPrograms(BuildNative):
    """Builds the programs that test the transport under a sanitizer, into build/SANITIZER.

    `python setup.py build_programs --sanitizer=address` builds the fuzzers of requests, and
    `--sanitizer=thread` the test of races. clang++ is preferred, since libFuzzer comes with it.
    """

    user_options: ClassVar = [("sanitizer=", None, "address or thread")]

    def initialize_options(self) -> None:
        """Set the default."""
        super().initialize_options()
        self.sanitizer = "address"

    def run(self) -> None:
        """Configure and build; print where the programs are."""
        if self.sanitizer not in ("address", "thread"):
            raise BuildError(f"--sanitizer is address or thread, got {self.sanitizer!r}")
        tensorflow = self._prepare()[0]
        folder = ROOT / "build" / self.sanitizer
        cxx = compiler(("clang++", *(f"clang++-{n}" for n in range(21, 13, -1)), "g++"))
        self._configure(tensorflow, folder, cxx, f"-DTF_FUSE_SANITIZER={self.sanitizer}")
        say(f"compiling the programs with {cxx} and {jobs()} job(s)")
        targets = ["--target", "programs", "--parallel", str(jobs())]
        self._cmake("--build", str(folder), *targets)
        say(f"built the programs in {folder}")


def _replace(path: Path, content: bytes) -> None:
    """Write a file under a new inode: a process that has the old one mapped keeps it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o755 if path.suffix == ".so" else 0o644)
    os.replace(file.name, path)


class PlatformDistribution(Distribution):
    """A distribution whose wheel is tagged with the platform."""

    def has_ext_modules(self) -> bool:
        """Says that the wheel holds native code."""
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for any Python: the library holds no symbol of CPython."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: of the platform's three parts only the last matters."""
        return ("py3", "none", super().get_tag()[2])


def requirements() -> tuple[list[str], list[str]]:
    """Return what building needs beside pyproject.toml's list, and which TensorFlow to require.

    Nothing is required with TF_FUSE_PYTHONS: whoever has tensorflow-cpu must not get tensorflow
    on top of it. The extras `cpu` and `gpu` name them.
    """
    wanted = os.environ.get("TF_FUSE_TENSORFLOW")
    if wanted not in (None, "", *DISTRIBUTIONS):
        raise BuildError(f"TF_FUSE_TENSORFLOW is {wanted!r}; it must be one of {DISTRIBUTIONS}.")
    if os.environ.get("TF_FUSE_PYTHONS"):
        return [], []
    found = TensorFlow.find()
    if found is None:
        requirement = f"{wanted or 'tensorflow'}{TENSORFLOW_RANGE}"
        return [requirement], [requirement]
    return [PROTOC[found.minor]], [f"{wanted or found.distribution}{RANGES[found.minor]}"]


def main() -> None:
    """Chooses the TensorFlow distribution and hands over to setuptools."""
    builds_with, requires = requirements()
    # Only a PEP 517 front end can act on setup_requires; a direct call fails in BuildNative with
    # the command that mends it.
    isolated = "setuptools.build_meta" in sys.modules
    setup(
        distclass=PlatformDistribution,
        cmdclass={
            "bdist_wheel": PlatformWheel,
            "build_py": BuildPy,
            "build_ext": BuildNative,
            "build_programs": BuildPrograms,
        },
        ext_modules=[Extension("tf_fuse._lib.libtf_fuse", sources=[])],
        setup_requires=builds_with if isolated else [],
        install_requires=[
            *requires,
            "numpy>=1.26,<3",
            "protobuf>=6.31.1,<8",
            "psutil>=5.9,<8",
            "rich>=13,<16",
        ],
        zip_safe=False,
    )


if __name__ == "__main__":
    main()
