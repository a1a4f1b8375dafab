# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The package and the TensorFlow that are installed here."""

import importlib.metadata
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(importlib.util.find_spec("tf_fuse").origin).parent  # type: ignore[union-attr]
BOTH = ("tensorflow", "tensorflow-cpu")
_FOUND = importlib.metadata.distributions()
TENSORFLOW = next(one.version for one in _FOUND if one.name.replace("_", "-") in BOTH)
MINOR = ".".join(TENSORFLOW.split(".")[:2])
LIBRARY = PACKAGE / "_lib" / MINOR / "libtf_fuse.so"


def installed() -> dict[str, str]:
    found = {}
    for name in BOTH:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
