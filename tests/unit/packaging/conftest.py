# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the build."""

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.unit.packaging.installed import ROOT


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py as a module; nothing runs on import."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # setup.py adds a folder
    spec = importlib.util.spec_from_file_location("tf_fuse_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def find_tensorflow(setup_py: ModuleType) -> ModuleType:
    """The module cc/find_tensorflow.py that setup.py imports."""
    return sys.modules[setup_py.TensorFlow.__module__]
