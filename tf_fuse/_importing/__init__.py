# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happens while this package is imported."""

from tf_fuse._importing import first_signal, purpose

__all__ = ["first_signal", "purpose"]
