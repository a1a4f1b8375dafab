# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `python -m tf_fuse` and the script `tf-fuse`; see `tf_fuse.cli`."""

import sys

from tf_fuse.cli import main

if __name__ == "__main__":
    sys.exit(main())
