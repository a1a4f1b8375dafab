# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the C++ tests of the frame codec (cc/frame), without TensorFlow.

Programs are built with AddressSanitizer and UBSan and kept in pytest's cache folder under a hash
of everything they depend on, so that an unchanged codec is compiled once.
"""

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CC_ROOT = Path(__file__).resolve().parents[3] / "cc"
FRAME = CC_ROOT / "frame"
CODEC = ["frame.cc", "frame_decode.cc"]
PROGRAMS = {
    "frame_test": [*CODEC, "frame_main_test.cc", "frame_encode_test.cc", "frame_decode_test.cc"],
    "frame_fuzz_standalone": [*CODEC, "frame_main_fuzz.cc", "frame_fuzz.cc"],
}
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", *SANITIZE]
# Leak detection needs ptrace, which containers often forbid. A small quarantine and short
# allocation stacks make fuzzing several times faster.
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=2",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
FUZZ_INPUTS = 200_000
CORPUS = sorted(str(path) for path in (FRAME / "corpus").iterdir())


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


def _checked(command: list[str]) -> str:
    result = _run(command)
    assert result.returncode == 0, (
        f"exit status {result.returncode} of: {' '.join(command)}\n{result.stdout}{result.stderr}"
    )
    return result.stdout


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C++ compiler: $CXX, else the first of g++, clang++, c++; skips if there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no C++ compiler: none of {', '.join(names)} is on PATH")
    folder = tmp_path_factory.mktemp("probe")
    source, program = folder / "probe.cc", folder / "probe"
    source.write_text("int main() { return 0; }\n")
    result = _run([found, *SANITIZE, str(source), "-o", str(program)])
    if result.returncode == 0:
        result = _run([str(program)])
    if result.returncode != 0:
        pytest.skip(f"{found} cannot build or run programs with {SANITIZE[0]}: {result.stderr}")
    return found


@pytest.fixture(scope="session")
def programs(compiler: str, pytestconfig: pytest.Config) -> dict[str, Path]:
    """The built programs by name."""
    digest = hashlib.sha256(_checked([compiler, "--version"]).encode())
    digest.update("\0".join([*FLAGS, str(PROGRAMS)]).encode())
    for path in sorted([*FRAME.glob("*.h"), *FRAME.glob("*.cc")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    root = pytestconfig.cache.mkdir("tf_fuse_frame")
    folder = root / digest.hexdigest()[:16]
    built = {name: folder / name for name in PROGRAMS}
    if all(path.exists() for path in built.values()):
        return built
    # Nothing of a former codec stays behind.
    for old in sorted(root.iterdir()):
        shutil.rmtree(old)
    folder.mkdir()
    sources = sorted({source for sources in PROGRAMS.values() for source in sources})

    def compile_one(source: str) -> None:
        command = [compiler, *FLAGS, f"-I{CC_ROOT}", "-c", str(FRAME / source)]
        _checked([*command, "-o", str(folder / f"{source}.o")])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))
    for name, parts in PROGRAMS.items():
        objects = [str(folder / f"{part}.o") for part in parts]
        # Renamed when complete: an interrupted link must not be taken for a program.
        partial = folder / f"{name}.partial"
        _checked([compiler, *SANITIZE, *objects, "-o", str(partial)])
        partial.rename(built[name])
    return built


def test_unit_tests(programs: dict[str, Path]) -> None:
    lines = _checked([str(programs["frame_test"])]).splitlines()
    defined = sum(
        len(re.findall(r"^FRAME_TEST\(", path.read_text(), re.MULTILINE))
        for path in FRAME.glob("*_test.cc")
    )
    assert defined > 0
    assert [line for line in lines[:-1] if not line.startswith("ok ")] == []
    assert lines[-1] == f"{defined} tests, 0 failed expectations"


def _counts(output: str) -> dict[str, int]:
    return {kind: int(n) for kind, n in re.findall(r"^  (\w+) +(\d+)$", output, re.MULTILINE)}


@pytest.mark.parametrize("files", [[], CORPUS], ids=["generated", "from_corpus"])
def test_short_fuzz(programs: dict[str, Path], files: list[str]) -> None:
    fuzz = str(programs["frame_fuzz_standalone"])
    output = _checked([fuzz, str(FUZZ_INPUTS), "1", *files])
    counts = _counts(output)
    # Each sort of result must come up, or the inputs have become too weak to mean anything.
    # (UnexpectedSlots depends on the caller's limits, which this target leaves open.)
    assert sorted(counts) == [
        "BadMagic",
        "Corrupt",
        "InvalidArgument",
        "LimitExceeded",
        "Ok",
        "Truncated",
        "UnsupportedVersion",
    ]
    assert sum(counts.values()) == FUZZ_INPUTS
    assert min(counts.values()) >= 50
    done = rf"^executed {FUZZ_INPUTS} inputs, seed 1, {len(files)} files, .* clean$"
    assert re.search(done, output, re.MULTILINE)


def test_corpus(programs: dict[str, Path]) -> None:
    assert CORPUS
    output = _checked([str(programs["frame_fuzz_standalone"]), *CORPUS])
    assert output.endswith(f"executed {len(CORPUS)} files, clean\n")


def test_fuzz_begins_with_the_corpus_and_changes_it(programs: dict[str, Path]) -> None:
    fuzz = str(programs["frame_fuzz_standalone"])
    assert _counts(_checked([fuzz, str(len(CORPUS)), "1", *CORPUS])) == _counts(
        _checked([fuzz, *CORPUS])
    )
    # Most changes of a truncated frame leave it so; few inputs that are generated are.
    truncated = str(FRAME / "corpus" / "frame_truncated")
    with_it, without = (
        _counts(_checked([fuzz, "3000", "1", *files]))["Truncated"] for files in ([truncated], [])
    )
    assert with_it > 500 > 200 > without


def test_bad_arguments_and_missing_files_are_refused(programs: dict[str, Path]) -> None:
    fuzz = str(programs["frame_fuzz_standalone"])
    assert _run([fuzz]).returncode == 2
    missing = _run([fuzz, "no-such-file"])
    assert (missing.returncode, missing.stderr) == (2, "cannot read no-such-file\n")
