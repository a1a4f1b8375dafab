# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The control flow that graphs of the pass's tests are made of."""

import pytest
import tensorflow as tf

v1 = tf.compat.v1


@pytest.fixture(params=["v1", "v2"])
def control_flow(request):
    """Both kinds: TF1's own Switch and Merge, and TF2's If and While, which are lowered to them."""
    was_on = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "v2" else v1.disable_control_flow_v2)()
    yield request.param
    (v1.enable_control_flow_v2 if was_on else v1.disable_control_flow_v2)()
