# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds the native library with CMake against the TensorFlow of the target environment.

Static metadata lives in pyproject.toml. This file decides what pyproject.toml cannot: which
TensorFlow distribution is required and built against, and how ``cc/`` becomes
``tf_fuse/_lib/libtf_fuse.so``.

Environment variables:
    TF_FUSE_TENSORFLOW: ``tensorflow`` or ``tensorflow-cpu``; the distribution to require. By
        default the one that the environment has, and ``tensorflow`` where it has none.
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
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
TENSORFLOW_RANGE = ">=2.21,<2.22"
TENSORFLOW_RELEASE = "2.21."
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
# The largest translation units hold about 2 GiB while they compile.
BYTES_PER_JOB = 2 << 30

# Finds TensorFlow without importing it (an import takes seconds and its dependencies may not be
# there yet). Prints one JSON object.
_FIND_TENSORFLOW = """
import importlib.metadata, importlib.util, json, sys
spec = importlib.util.find_spec("tensorflow")
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
folder = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
print(json.dumps({"folder": folder, "versions": versions}))
"""

# TensorFlow's own account of how it was built; the last line is one JSON object.
_DESCRIBE_TENSORFLOW = """
import json, tensorflow as tf
flags = [f for f in tf.sysconfig.get_compile_flags() if f.startswith("-D")]
print(json.dumps({"version": tf.__version__, "git_version": tf.version.GIT_VERSION,
                  "folder": tf.__path__[0], "flags": flags,
                  "cxx11_abi": int(tf.sysconfig.CXX11_ABI_FLAG)}))
"""


class BuildError(SystemExit):
    """Ends the build with one readable message instead of a traceback."""

    def __init__(self, message: str):
        super().__init__(f"\ntf_fuse: {message}\n")


def say(message: str) -> None:
    """Prints progress at once, also into a pipe."""
    print(f"tf_fuse: {message}", flush=True)


class TensorFlow:
    """The installed TensorFlow to build against.

    Attributes:
        folder: the folder of the package ``tensorflow``.
        versions: version by distribution name, for those of `DISTRIBUTIONS` that are installed.
        env: environment in which ``python -c "import tensorflow"`` finds it.
        lasting: False if it lies in the throw-away environment of an isolated build.
    """

    def __init__(self, folder: Path, versions: dict[str, str], env: dict[str, str], lasting: bool):
        self.folder = folder
        self.versions = versions
        self.env = env
        self.lasting = lasting

    @property
    def distribution(self) -> str:
        """The name to require; ``tensorflow`` if both lie over one another."""
        return next(name for name in DISTRIBUTIONS if name in self.versions)

    @classmethod
    def find(cls) -> TensorFlow | None:
        """Looks in the target environment, then in the isolated build environment.

        pip hides the target's packages from an isolated build by way of PYTHONPATH; a child
        process without that variable sees what the user's own programs will see.
        """
        inherited = {**os.environ, "PYTHONSAFEPATH": "1"}
        target = {k: v for k, v in inherited.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
        for env, lasting in ((target, True), (inherited, False)):
            found = _python_json(_FIND_TENSORFLOW, env, *DISTRIBUTIONS)
            if not found["folder"] or not found["versions"]:
                continue
            for name, version in found["versions"].items():
                if not version.startswith(TENSORFLOW_RELEASE):
                    raise BuildError(
                        f"needs TensorFlow {TENSORFLOW_RANGE}, but {name} {version} is installed "
                        f"in {found['folder']}.\nInstall a matching one first:\n"
                        f'    python -m pip install "{name}{TENSORFLOW_RANGE}"'
                    )
            return cls(Path(found["folder"]), found["versions"], env, lasting)
        return None

    def describe(self) -> dict:
        """Imports TensorFlow in a child process and returns its version and compile flags."""
        try:
            return _python_json(_DESCRIBE_TENSORFLOW, {**self.env, "TF_CPP_MIN_LOG_LEVEL": "3"})
        except subprocess.CalledProcessError as error:
            raise BuildError(
                f"TensorFlow in {self.folder} cannot be imported:\n{error.stderr}\n"
                "Reinstall it first:\n    python -m pip install --force-reinstall "
                f'"{self.distribution}{TENSORFLOW_RANGE}"'
            ) from error


def _python_json(code: str, env: dict[str, str], *args: str) -> dict:
    """Runs `code` in a child Python and returns the JSON object of its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, text=True, capture_output=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def check_platform() -> None:
    """Raises BuildError unless TensorFlow's Linux x86-64 wheel can be here."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BuildError(f"needs Linux on x86_64; this is {sys.platform} on {platform.machine()}.")


def tool(name: str, remedy: str) -> str:
    """Returns the path of a program, looked for in this environment's scripts and on PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    found = shutil.which(name, path=path)
    if not found:
        raise BuildError(f"{name} was not found. Install it:\n    {remedy}")
    return found


def compiler(names: Sequence[str] = ("g++", "clang++", "c++")) -> str:
    """Returns the C++ compiler: $CXX, or the first of the names that is there."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else names
    for name in wanted:
        if found := shutil.which(name):
            return found
    raise BuildError(
        f"no C++ compiler was found (looked for {', '.join(wanted)}). Install one:\n"
        "    sudo apt-get install g++"
    )


def jobs() -> int:
    """Returns the number of compile jobs: one per usable core, as far as memory goes."""
    if level := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL"):
        return int(level)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    return max(1, min(len(os.sched_getaffinity(0)), available // BYTES_PER_JOB))


def generate_protos() -> None:
    """Generates tf_fuse/v1/*_pb2.py and .pyi from proto/ where they are missing or stale.

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
    """Returns a hash of the sources, by name under proto/, and of the version of their compiler."""
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    hashes = [
        [name, hashlib.sha256((ROOT / "proto" / name).read_bytes()).hexdigest()] for name in names
    ]
    return hashlib.sha256(json.dumps([version, hashes]).encode()).hexdigest()


class BuildPy(build_py):
    """Generates the Python protocol buffers before the packages are collected."""

    def run(self) -> None:
        """Runs protoc where needed, then setuptools' own step."""
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
        """Lists the library and its build_info.json."""
        info = os.path.join(self.build_lib, "tf_fuse", "_lib", "build_info.json")
        return [*super().get_outputs(), info]

    def run(self) -> None:
        """Configures, builds and places the library; writes build_info.json."""
        tensorflow = self._prepare()
        folder = self._build_folder(tensorflow)
        info = self._configure(tensorflow, folder, compiler())
        say(f"compiling cc/ with {jobs()} job(s)")
        self._cmake("--build", str(folder), "--parallel", str(jobs()))
        # Into the checkout in any case, as the protocol buffers: its tests and benchmarks put it
        # before an installed tf_fuse.
        roots = {ROOT, ROOT if self.inplace else Path(self.build_lib).resolve()}
        text = json.dumps(info, indent=2, sort_keys=True) + "\n"
        for out in sorted(root / "tf_fuse" / "_lib" for root in roots):
            out.mkdir(parents=True, exist_ok=True)
            _replace(out / "libtf_fuse.so", (folder / "libtf_fuse.so").read_bytes())
            _replace(out / "build_info.json", text.encode())
            built = out / "libtf_fuse.so"
            say(f"built {built} against {tensorflow.distribution} {info['tensorflow']}")

    def _prepare(self) -> TensorFlow:
        """Checks the platform, generates protocol buffers, and finds TensorFlow."""
        check_platform()
        generate_protos()
        tensorflow = TensorFlow.find()
        if tensorflow is None:
            raise BuildError(
                "TensorFlow is not installed. Install it first:\n    python -m pip install "
                f'"tensorflow-cpu{TENSORFLOW_RANGE}"'
            )
        return tensorflow

    def _build_folder(self, tensorflow: TensorFlow) -> Path:
        """One folder per TensorFlow that stays; a temporary one for one that will be gone."""
        if not tensorflow.lasting:
            return Path(self.build_temp).resolve() / "native"
        digest = hashlib.sha256(str(tensorflow.folder).encode()).hexdigest()[:8]
        return ROOT / "build" / f"native-{digest}"

    def _configure(self, tensorflow: TensorFlow, folder: Path, cxx: str, *settings: str) -> dict:
        """Runs CMake's configure step, from scratch if anything it rests on has changed."""
        library = (tensorflow.folder / "libtensorflow_cc.so.2").stat()
        fingerprint = {
            "source": str(ROOT),
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
            f"-DTENSORFLOW_DIR={tensorflow.folder}",
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
            "compiler": (folder / "compiler.txt").read_text().strip(),
            "protobuf": (folder / "protobuf.txt").read_text().strip(),
        }

    def _cmake(self, *arguments: str) -> None:
        """Runs CMake with its output passed on line by line."""
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
        """Sets the default."""
        super().initialize_options()
        self.sanitizer = "address"

    def run(self) -> None:
        """Configures and builds; prints where the programs are."""
        if self.sanitizer not in ("address", "thread"):
            raise BuildError(f"--sanitizer is address or thread, got {self.sanitizer!r}")
        tensorflow = self._prepare()
        folder = ROOT / "build" / self.sanitizer
        cxx = compiler(("clang++", *(f"clang++-{n}" for n in range(21, 13, -1)), "g++"))
        self._configure(tensorflow, folder, cxx, f"-DTF_FUSE_SANITIZER={self.sanitizer}")
        say(f"compiling the programs with {cxx} and {jobs()} job(s)")
        targets = ["--target", "programs", "--parallel", str(jobs())]
        self._cmake("--build", str(folder), *targets)
        say(f"built the programs in {folder}")


def _replace(path: Path, content: bytes) -> None:
    """Writes a file under a new inode: a process that has the old one mapped keeps it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o755 if path.suffix == ".so" else 0o644)
    os.replace(file.name, path)


class PlatformDistribution(Distribution):
    """A distribution whose wheel is tagged with the platform."""

    def has_ext_modules(self) -> bool:
        """Says that the wheel holds native code."""
        return True


def main() -> None:
    """Chooses the TensorFlow distribution and hands over to setuptools."""
    wanted = os.environ.get("TF_FUSE_TENSORFLOW")
    if wanted not in (None, "", *DISTRIBUTIONS):
        raise BuildError(f"TF_FUSE_TENSORFLOW is {wanted!r}; it must be one of {DISTRIBUTIONS}.")
    found = TensorFlow.find()
    distribution = wanted or (found.distribution if found else "tensorflow")
    requirement = distribution + TENSORFLOW_RANGE
    # Only a PEP 517 front end can act on setup_requires; a direct call fails in BuildNative with
    # the command that mends it.
    isolated = "setuptools.build_meta" in sys.modules
    setup(
        distclass=PlatformDistribution,
        cmdclass={
            "build_py": BuildPy,
            "build_ext": BuildNative,
            "build_programs": BuildPrograms,
        },
        ext_modules=[Extension("tf_fuse._lib.libtf_fuse", sources=[])],
        setup_requires=[requirement] if isolated and found is None else [],
        install_requires=[
            requirement,
            "numpy>=1.26,<3",
            "protobuf>=6.31.1,<8",
            "psutil>=5.9,<8",
            "rich>=13,<16",
        ],
        zip_safe=False,
    )


if __name__ == "__main__":
    main()
