# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make rates for tests, which give the few that are not zero."""

import dataclasses

from tf_fuse.scale.rates import Rates


def rates(**given: float) -> Rates:
    """Return rates that are zero, except for those given and for factors of nothing."""
    zero = {field.name: 0.0 for field in dataclasses.fields(Rates)}
    ones = dict.fromkeys(("step_threads", "data_threads", "core_share", "path_share"), 1.0)
    return Rates(**{**zero, **ones, **given})
