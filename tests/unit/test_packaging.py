# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the build leaves: exported symbols, build_info.json, wheel; and how it picks TensorFlow."""

import email
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(importlib.util.find_spec("tf_fuse").origin).parent  # type: ignore[union-attr]
BOTH = ("tensorflow", "tensorflow-cpu")
_FOUND = importlib.metadata.distributions()
TENSORFLOW = next(one.version for one in _FOUND if one.name.replace("_", "-") in BOTH)
MINOR = ".".join(TENSORFLOW.split(".")[:2])
LIBRARY = PACKAGE / "_lib" / MINOR / "libtf_fuse.so"


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (Debian package binutils)")
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def _installed() -> dict[str, str]:
    found = {}
    for name in BOTH:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


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
    assert info["tensorflow"] in _installed().values()
    assert info["tensorflow_distribution"] in BOTH
    assert info["tensorflow_git_version"].startswith(f"v{MINOR}.")
    assert info["cxx11_abi"] == 1
    assert info["protobuf"] == {"2.20": "5.28.3", "2.21": "6.31.1"}[MINOR]
    assert re.fullmatch(r"(GNU|Clang) \d+(\.\d+)+", info["compiler"])


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
    assert names == sources | generated | native | {"tf_fuse/py.typed"}
    mode = wheel.getinfo(f"tf_fuse/_lib/{MINOR}/libtf_fuse.so").external_attr >> 16
    assert stat.S_IMODE(mode) == 0o755


def test_wheel_requires_the_tensorflow_that_is_here(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    requires = [r for r in metadata.get_all("Requires-Dist", []) if r.startswith("tensorflow")]
    here = next(name for name in BOTH if name in _installed())
    low, high = {"2.20": (">=2.20", "<2.21"), "2.21": (">=2.21", "<2.22")}[MINOR]
    assert [r.replace(" ", "") for r in requires if "extra" not in r] in (
        [f"{here}{high},{low}"],
        [f"{here}{low},{high}"],
    )
    assert metadata["License-Expression"] == "Apache-2.0"
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
        "test",
    ]


# --- Choosing TensorFlow in setup.py -------------------------------------------------------------


@pytest.fixture
def setup_py() -> ModuleType:
    """setup.py as a module; nothing runs on import."""
    spec = importlib.util.spec_from_file_location("tf_fuse_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environments(
    setup_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str], dict[str, str]], None]:
    """A function that sets what the target and the isolated environment seem to hold."""
    monkeypatch.setenv("PYTHONPATH", "isolated")

    def fake(target: dict[str, str], isolated: dict[str, str]) -> None:
        def find(code: str, env: dict[str, str], *names: str) -> dict:
            assert names == BOTH
            where, versions = ("/i", isolated) if "PYTHONPATH" in env else ("/t", target)
            return {"folder": f"{where}/tensorflow" if versions else None, "versions": versions}

        monkeypatch.setattr(setup_py, "_python_json", find)

    return fake


def test_what_a_child_finds_is_told_from_what_it_logs(setup_py: ModuleType) -> None:
    code = "import sys; open(sys.argv[1], 'w').write('[1]'); print('a line after it', sys.argv[2])"
    assert setup_py._python_json(code, dict(os.environ), "x") == [1]


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


# --- .ci/environment without ensurepip (Debian's python3 without python3-venv) -------------------

# Puts a pip into the environment that runs it, one that says what it is asked for and fails: what
# follows would need the network.
_PUT_STUB_PIP = """
import pathlib, sys, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"), "pip")
folder.mkdir()
(folder / "__init__.py").write_text("")
(folder / "__main__.py").write_text("import sys; sys.exit(f'stub pip: {sys.argv[1:]}')")
print("put there with", sys.argv[1:], flush=True)
"""
# What the host's pip does.
_HOST_PIPS = {
    "good": """
import pathlib, subprocess, sys
option, python, *rest = sys.argv[1:]
assert option == "--python"
put = pathlib.Path(__file__).parents[1] / "put_stub_pip.py"
sys.exit(subprocess.run([python, put, *rest]).returncode)
""",
    "old": "import sys; sys.exit('no such option: --python')",
    "none": "",
}
# Python imports it when it starts.
_SITECUSTOMIZE = """
import pathlib, urllib.request
def fake(url, timeout):
    assert (url, timeout) == ("https://bootstrap.pypa.io/get-pip.py", 60)
    if not NETWORK:
        raise urllib.request.URLError("no network")
    return pathlib.Path(__file__).with_name("put_stub_pip.py").open("rb")
urllib.request.urlopen = fake
"""


def _make_environment(
    tmp_path: Path, env: dict[str, str], host_pip: str, network: bool
) -> tuple[subprocess.CompletedProcess, str]:
    """Runs .ci/environment with a Python whose ensurepip is hidden; returns that Python, too."""
    hidden = tmp_path / "hidden"
    for name in ("ensurepip", "pip"):
        (hidden / name).mkdir(parents=True)
    (hidden / "ensurepip" / "__init__.py").write_text("raise ImportError")
    (hidden / "pip" / "__init__.py").write_text("raise ImportError" if host_pip == "none" else "")
    (hidden / "pip" / "__main__.py").write_text(_HOST_PIPS[host_pip])
    (hidden / "put_stub_pip.py").write_text(_PUT_STUB_PIP)
    (hidden / "sitecustomize.py").write_text(_SITECUSTOMIZE.replace("NETWORK", str(network)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{hidden}" "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    source = tmp_path / "source"
    (source / ".ci").mkdir(parents=True)
    for name in (".ci/environment", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run(
        [source / ".ci" / "environment", ".venv"],
        # Only that there is a compiler is looked at so far.
        env={**env, "PYTHON": str(python), "CXX": "sh", "TENSORFLOW": "tensorflow-cpu"},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    return done, str(python)


def _steps(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("    ... ")]


@pytest.mark.parametrize("host_pip", ["good", "old", "none"])
def test_environment_gets_pip_without_ensurepip(
    host_pip: str, tmp_path: Path, isolated_env: dict[str, str]
) -> None:
    done, python = _make_environment(tmp_path, isolated_env, host_pip, network=True)
    version = ".".join(map(str, sys.version_info[:3]))
    put = ["put there with ['install', 'pip']"]
    if host_pip != "good":
        put = [
            f"    {python} has no pip that can do it; downloading get-pip.py",
            "put there with ['--no-setuptools', '--no-wheel']",
        ]
    assert _steps(done) == [
        f"==> making .venv with Python {version}",
        f"==> putting pip into .venv: {python} has no ensurepip",
        *put,
        "==> updating pip",
    ]
    assert done.stderr.splitlines() == [
        *(["no such option: --python"] if host_pip == "old" else []),
        "stub pip: ['install', '--upgrade', 'pip>=24.1']",
        "error: '.venv/bin/python -m pip install --upgrade pip>=24.1' failed with status 1 "
        "(its message stands above)",
    ]
    venv = tmp_path / "source" / ".venv"
    assert (venv / "tf_fuse-origin").read_text() == f"{venv} tensorflow-cpu {python}\n"
    assert not (venv / "get-pip.py").exists()


def test_environment_without_any_pip_names_the_package(
    tmp_path: Path, isolated_env: dict[str, str]
) -> None:
    done, python = _make_environment(tmp_path, isolated_env, "none", network=False)
    assert done.stderr.splitlines() == [
        "    https://bootstrap.pypa.io/get-pip.py: <urlopen error no network>",
        f"error: {python} has no ensurepip, and pip could not be had otherwise (see above). "
        "Install it: sudo apt-get install python3-venv",
    ]
    # What is not finished is made anew the next time.
    assert not (tmp_path / "source" / ".venv" / "tf_fuse-origin").exists()


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
