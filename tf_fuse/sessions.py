# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add our options to the config of a `tf.compat.v1.Session`; see docs/sessions.md."""

from __future__ import annotations

from typing import Any

from tf_fuse import options as options_module


def session_config(config: Any = None, *, do_fuse_recv: bool = True, **options: Any) -> Any:
    """Make the ConfigProto of a session whose receives are fused.

        server = tf.distribute.Server(spec, "worker", 0, protocol="grpc+fuse")
        with tf.compat.v1.train.MonitoredTrainingSession(
            master=server.target, config=tf_fuse.session_config()
        ) as session: ...

    Args:
      config: a `tf.compat.v1.ConfigProto` to copy; None for an empty one. An earlier entry of ours
        is replaced in the copy.
      do_fuse_recv: as the option of that name: receive the tensors of one task together. (RFC
        20200411-fuse_recv.)
      **options: other options of tf_fuse that apply to sessions.

    Returns:
      A new `tf.compat.v1.ConfigProto`. If all options are off, it equals `config`.

    Raises:
      TypeError: `config` is not a ConfigProto, or an option has the wrong type.
      ValueError: an option is unknown or does not apply to sessions; or `config` sets an option
        that excludes `do_fuse_recv`. The message says what to do.
    """
    from tensorflow.core.protobuf import config_pb2

    if config is not None and not isinstance(config, config_pb2.ConfigProto):
        raise TypeError(
            f"config must be a tf.compat.v1.ConfigProto or None, got {type(config).__name__}"
        )
    asked = {"do_fuse_recv": do_fuse_recv, **options}
    options_module.validate(asked)
    known = sorted(k for k, option in options_module.OPTIONS.items() if option.in_sessions)
    for key in sorted(asked.keys() - set(known)):
        what = "does not apply to sessions" if key in options_module.OPTIONS else "is unknown"
        raise ValueError(
            f"the option {key!r} {what}; the options of tf_fuse in sessions are: {', '.join(known)}"
        )
    result = config_pb2.ConfigProto()
    if config is not None:
        result.CopyFrom(config)
    if do_fuse_recv and result.graph_options.enable_recv_scheduling:
        raise ValueError(
            "do_fuse_recv and graph_options.enable_recv_scheduling exclude one another: both "
            "decide when a tensor is received. Leave one of them off"
        )
    options_module.add_to_config(result, asked)
    return result
