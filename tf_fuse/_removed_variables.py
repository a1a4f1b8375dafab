# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Warn of environment variables that a former version of tf_fuse read."""

from __future__ import annotations

import logging
import os

REMOVED_VARIABLES = (
    "TF_FUSE_FRAME_VERSION",
    "TF_FUSE_MAX_KEY_BYTES",
    "TF_FUSE_MAX_PENDING_REQUESTS_PER_STEP",
    "TF_FUSE_REQUEST_CACHE_BYTES",
)

_log = logging.getLogger("tf_fuse")


def warn() -> None:
    """Log one warning with all removed variables that are set, if any is."""
    found = [name for name in REMOVED_VARIABLES if os.environ.get(name)]
    if found:
        _log.warning("environment variables that no longer have an effect: %s", ", ".join(found))
