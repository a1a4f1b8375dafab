# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lint check of tests finds those in a wrong folder, and those with a wrong name."""

import importlib.util
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_SPEC = importlib.util.spec_from_file_location("check_tests", _ROOT / ".ci" / "check_tests.py")
check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check)

_FILES = (
    ".ci/environment",
    "benchmarks/layout/run.py",
    "cc/passes/fuse_recv/pipeline.cc",
    "cc/passes/merge_pass.cc",
    "docs/keras.md",
    "setup.py",
    "tf_fuse/_native.py",
    "tf_fuse/layout/cost/__init__.py",
    "tf_fuse/layout/cost/model.py",
)


def _faults(root: Path, test: str) -> list[str]:
    for name in (*_FILES, f"tests/unit/{test}.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return check.find_faults(root)


def test_the_tests_have_no_fault():
    assert check.find_faults(_ROOT) == []


@pytest.mark.parametrize(
    "test",
    [
        "benchmarks/layout/test_run",
        "ci/test_environment",
        "docs/test_docs_links",
        "docs/test_keras",
        "layout/cost/model_examples",
        "layout/cost/test_cost",
        "layout/cost/test_cost_of_all",
        "layout/cost/test_model",
        "layout/cost/test_model_errors",
        "packaging/test_setup_wheel",
        "passes/fuse_recv/test_pipeline",
        "passes/test_merge",
        "passes/test_merge_pass_loops",
        "test_native",
        "test_tf_fuse_import",
    ],
)
def test_a_test_that_is_found(test, tmp_path):
    assert _faults(tmp_path, test) == []


def test_a_folder_that_mirrors_none(tmp_path):
    (fault,) = _faults(tmp_path, "costs/test_model")
    assert fault == (
        "tests/unit/costs/test_model.py: expected one of the folders tf_fuse/costs, cc/costs, "
        "costs, and there is none"
    )


@pytest.mark.parametrize("test", ["test_init", "test_models", "test_times"])
def test_a_name_of_no_module(test, tmp_path):
    (fault,) = _faults(tmp_path, f"layout/cost/{test}")
    assert fault == (
        f"tests/unit/layout/cost/{test}.py: expected test_MODULE.py or test_MODULE_ASPECT.py of a "
        "module of tf_fuse/layout/cost, or test_cost_ASPECT.py"
    )


def test_a_module_of_another_folder(tmp_path):
    (fault,) = _faults(tmp_path, "layout/test_model")
    assert fault.endswith("of a module of tf_fuse/layout, or test_layout_ASPECT.py")
