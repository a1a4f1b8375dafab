# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loads `tf_fuse.cluster` without `tf_fuse`, for runs that must be stock TensorFlow.

`import tf_fuse.cluster` runs `tf_fuse/__init__.py`, which loads the plugin. A stock run must not
have it loaded, so the folder is loaded under another name; it imports nothing outside itself.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_NAME = "_tf_fuse_cluster_standalone"


def cluster_package() -> ModuleType:
    """Return the package `tf_fuse.cluster`, loaded by path; `tf_fuse` is not imported.

    Raises:
      ImportError: there is no `tf_fuse` on the import path.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    found = importlib.util.find_spec("tf_fuse")  # finds, and does not import, a top-level package
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            "no package tf_fuse on the import path; run from the checkout or `pip install .`"
        )
    folder = Path(found.submodule_search_locations[0]) / "cluster"
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None  # a path to a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module
