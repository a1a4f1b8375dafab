# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find out what this package is imported for, while it is imported."""

import dis
import sys
from types import FrameType

_OURS = ("tf_fuse", "tf_fuse._importing", "tf_fuse._importing.first_signal")
_IMPORTING = ("runpy", "importlib", "_frozen_importlib")


def is_imported_for(name: str) -> bool:
    """Return whether Python imports this package as a step of importing a module of it.

    Args:
      name: of the module; one in it counts, too. `from tf_fuse import layout` counts, unless it
        imports other names as well.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_IMPORTING):
            texts = [value for value in frame.f_locals.values() if isinstance(value, str)]
            if any(f"{text}.".startswith(f"{name}.") for text in texts):
                return True
        elif module not in _OURS:
            return _imported_by(frame) == {name}
        frame = frame.f_back
    return False


def _imported_by(frame: FrameType) -> set[str]:
    """Return what the `from ... import ...` that a frame executes imports; else nothing."""
    instructions = [
        one for one in dis.get_instructions(frame.f_code) if one.offset >= frame.f_lasti
    ]
    found: set[str] = set()
    if not instructions or instructions[0].opname != "IMPORT_NAME":
        return found
    for one in instructions[1:]:
        if one.opname == "IMPORT_FROM":
            found.add(f"{instructions[0].argval}.{one.argval}")
        elif not one.opname.startswith("STORE_"):
            break
    return found
