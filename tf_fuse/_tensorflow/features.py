# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch off a feature if a member of TensorFlow or Keras that it needs has changed."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.catalogue import MEMBERS
from tf_fuse._tensorflow.members import Member

_log = logging.getLogger("tf_fuse")
_lock = threading.RLock()
# By feature, whether it works; asked once, before its first member is replaced.
_known: dict[str, bool] = {}


def works(feature: str) -> bool:
    """Return whether a feature can be used; check its members when first asked.

    If a member has another shape, log one warning that names it. The caller then replaces nothing.

    Args:
      feature: one of `feature_names.py`.
    """
    if monkey_patch.is_uninstalled() and feature not in feature_names.REPLACE_NOTHING:
        return False
    with _lock:
        if feature not in _known:
            found = checks([m for m in MEMBERS if feature in m.features and m.is_present()])
            for member, problem in found:
                _log.warning(
                    "%s of %s %s: %s. TensorFlow stays unchanged there; `python -m tf_fuse "
                    "doctor` checks all members",
                    member,
                    version_of(member),
                    problem,
                    feature_names.WITHOUT[feature],
                )
            _known[feature] = not found
        return _known[feature]


def checks(members: Iterable[Member] = MEMBERS) -> list[tuple[Member, str]]:
    """Check members; of packages that are not installed, none.

    Returns:
      Those that have another shape than is relied on, and what differs.
    """
    found = []
    for member in members:
        if not member.is_installed():
            continue
        problem = monkey_patch.problem(member)
        if problem is not None:
            found.append((member, problem))
    return found


def version_of(member: Member) -> str:
    """Return the package of a member with its version, for messages."""
    shown = {"tensorflow": "TensorFlow", "keras": "Keras"}.get(member.package, member.package)
    version = getattr(sys.modules.get(member.package), "__version__", "of unknown version")
    return f"{shown} {version}"
