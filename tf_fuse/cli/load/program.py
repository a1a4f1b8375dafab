# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Import the Python function that a command line names as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


class ProgramError(ValueError):
    """What the command line names is not there, or does not return what the command needs."""


def named_function(text: str) -> Callable[[], Any]:
    """Return the function that MODULE:NAME names; modules of the current folder are found.

    Raises:
      ProgramError: the text is not MODULE:NAME, or the module or function does not exist.
    """
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ProgramError(f"{text!r} is not MODULE:NAME, as in train:step_and_args")
    sys.path.insert(0, os.getcwd())  # A script has its own folder there, not the user's.
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ProgramError(
            f"cannot import {module_name}: {error}; run the command in the folder of {module_name}"
        ) from error
    finally:
        sys.path.pop(0)
    make = getattr(module, name, None)
    if not callable(make):
        raise ProgramError(f"{module_name} has no function {name}")
    found: Callable[[], Any] = make
    return found
