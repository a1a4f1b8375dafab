# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend TensorFlow and Keras when an option needs it, and put their members back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Options for which functions are called in another form.
_CALLS = frozenset(
    {
        "do_fuse_recv",
        "shard_weight_update",
        "compile_weight_update",
        "fuse_weight_update",
    }
)


def install() -> None:
    """Extend what takes options, and note what later ones have to know; once per process."""
    from tf_fuse import options
    from tf_fuse._tensorflow import feature_names, features
    from tf_fuse.shard_update import traced_functions

    if not features.works(feature_names.OPTIONS):
        return
    if features.works(feature_names.WEIGHT_UPDATES):
        traced_functions.watch()
    options.install(_extend_for)


def _extend_for(options_set: Mapping[str, Any]) -> None:
    """Extend what the options need that are on."""
    from tf_fuse import options
    from tf_fuse._tensorflow import feature_names, features

    on = {key for key, value in options.effective(options_set).items() if value}
    on &= options.OPTIONS.keys()
    if not on:
        return
    from tf_fuse._tensorflow.graphs import instance_keys
    from tf_fuse._tensorflow.variables import coordinator_schedule
    from tf_fuse.parameter_server import interception as parameter_server
    from tf_fuse.parameter_server import steps_in_flight
    from tf_fuse.parameter_server.lookups import (
        handle_packing,
        mark_compressed,
        matmul,
        server_gather,
    )
    from tf_fuse.shard_update import interception as shard_update

    if features.works(feature_names.COLLECTIVES):
        instance_keys.install()
    if on & _CALLS:
        # In this order: the form that updates weights is called with handles packed.
        if features.works(feature_names.HANDLE_PACKING):
            handle_packing.install(options.packs_handles)
        if features.works(feature_names.WEIGHT_UPDATES):
            shard_update.install(
                options.reader("shard_weight_update"),
                options.reader("compile_weight_update"),
                options.fuses_updates,
            )
    if "do_fuse_recv" in on and features.works(feature_names.SCHEDULE):
        coordinator_schedule.extend(
            options.reader("do_fuse_recv"),
            lambda context: (options.value_of(context, "steps_in_flight") or 1) == 1,
        )
    if "place_variables" in on and features.works(feature_names.PLACEMENT):
        parameter_server.extend()
    if "gather_on_servers" in on and features.works(feature_names.GATHERS):
        server_gather.install(options.reader("gather_on_servers"))
    if "steps_in_flight" in on and features.works(feature_names.STEPS_IN_FLIGHT):
        steps_in_flight.extend(options_set["steps_in_flight"])
    if "compress" in on and features.works(feature_names.COMPRESSION):
        mark_compressed.install(
            options.reader("compress"),
            lambda context: options.value_of(context, "compress_variables") or "",
        )
    if "split_matmuls" in on and features.works(feature_names.MATMULS):
        matmul.install(options.reader("split_matmuls"))


def uninstall() -> None:
    """Put back every member of TensorFlow and Keras that tf_fuse has replaced in this process.

    Afterwards TensorFlow and Keras run their own code alone: the options of tf_fuse have no effect,
    and functions that are called next run as they were traced. It cannot be undone in this process.
    The native library stays loaded, so servers of the protocol "grpc+fuse" go on, and objects that
    were made keep what they have: variables in pieces, models that were laid out, functions whose
    graphs were changed while they were traced, options of calls of other threads (a thread that
    begins later has none). docs/internals.md lists the members.

    Call it between steps, when no other thread runs a function. Call it again at any time: then
    it does nothing.

    Raises:
      RuntimeError: variables keep their values in parts on several replicas
        (`shard_weight_update`), which TensorFlow cannot read by itself; nothing is put back.
    """
    from tf_fuse import options
    from tf_fuse._tensorflow import monkey_patch
    from tf_fuse.sharded_variable import handle_access

    if handle_access.is_any_sharded():
        raise RuntimeError(
            f"{len(handle_access.states)} variables keep their values in parts on several "
            "replicas (shard_weight_update), and TensorFlow alone cannot put them together: save a "
            "checkpoint, and restore it in a process that does not import tf_fuse"
        )
    options.forget()
    monkey_patch.uninstall()
