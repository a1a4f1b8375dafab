# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of `python -m tf_fuse doctor`: its checks by name, and how it is started."""

import subprocess
import sys
from pathlib import Path

import tf_fuse
from tests import forking
from tf_fuse import _native

PACKAGE = Path(tf_fuse.__file__).parent
NAMES = ["versions", "library", "protocol", "internals", "port", "round trip"]
NOT_TRIED = "not tried, because this failed: "


def run(env, *arguments, package=PACKAGE):
    """Runs Python with the package's folder first on its path; returns the finished process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**env, "PYTHONPATH": str(package.parent), forking.VARIABLE: "0"},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=250,
        check=False,
    )


def lib(package):
    """Returns the folder of the library for the installed TensorFlow, in a copy of the package."""
    return package / _native.library_path().parent.relative_to(PACKAGE)
