# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Change the text of an `OpError`, and drop a `BaseSession` without closing it."""

from __future__ import annotations

from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored

_SESSION = "tensorflow.python.client.session:BaseSession"
_WHY = "At the end of a program a session is dropped without closing it: a dead task would block."
MEMBERS = (
    Member(
        "tensorflow.python.framework.errors_impl:OpError",
        "_message",
        Stored(),
        "Errors name the program's function, not the form of it that ran.",
        (feature_names.HANDLE_PACKING, feature_names.WEIGHT_UPDATES),
        ON_OBJECTS,
    ),
    Member(_SESSION, "_closed", Stored(), _WHY, (feature_names.WEIGHT_UPDATES,), ON_OBJECTS),
    Member(_SESSION, "_session", Stored(), _WHY, (feature_names.WEIGHT_UPDATES,), ON_OBJECTS),
)


def set_message(error: Any, text: str) -> None:
    """Set the text of a `tf.errors.OpError` that is being raised."""
    error._message = text


def abandon(session: Any) -> None:
    """Drop a session without closing it."""
    session._closed, session._session = True, None
