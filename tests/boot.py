# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a file with a folder in front of Python's path: boot.py FILE FOLDER ARGUMENTS..."""

import runpy
import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    runpy.run_path(sys.argv[1], run_name="__main__")
