# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configure the logger "tf_fuse" in programs that do not configure logging."""

from __future__ import annotations

import logging
import sys

_NAME = "tf_fuse"


class _Handler(logging.Handler):
    """Writes warnings to standard error, as `logging` does where no handler exists.

    Every line begins with the package's name, which `logging.lastResort` leaves out. The handlers
    of a program that has some print the logger's name themselves; then this one is silent.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or logging.getLogger(_NAME).handlers != [self]:
            return
        try:
            print(f"{_NAME}: {self.format(record)}", file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def install() -> None:
    """Give the logger its handler, once per process."""
    logger = logging.getLogger(_NAME)
    if not logger.handlers:
        logger.addHandler(_Handler(logging.WARNING))
