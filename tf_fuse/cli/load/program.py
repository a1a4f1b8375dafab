# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Import the Python function that a command line names as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
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
    except Exception as error:  # of the user's module
        raise ProgramError(raised(module_name, error)) from error
    finally:
        sys.path.pop(0)
    make = getattr(module, name, None)
    if not callable(make):
        raise ProgramError(f"{module_name} has no function {name}")
    found: Callable[[], Any] = make
    return found


def raised(name: str, error: Exception) -> str:
    """Return a sentence for an error of the user's program: what it is, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{name} raised {type(error).__name__}: {error}{at}"
