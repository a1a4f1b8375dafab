# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the distributed training of stock TensorFlow communicate less.

Importing this package loads the plugin: it adds the server protocol "grpc+fuse" and the option
"do_fuse_recv" of `tf.config.optimizer.set_experimental_options`. Nothing changes until both are
asked for.

    import tensorflow as tf
    import tf_fuse

    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
"""

import sys as _sys

from tf_fuse import _native, layout
from tf_fuse._native import LibraryMissingError, UnsupportedPlatformError, VersionMismatchError
from tf_fuse._waiting import cluster_waiting, waiting
from tf_fuse.metrics import cluster_metrics, cluster_reports, metrics
from tf_fuse.prometheus import prometheus_text
from tf_fuse.sessions import session_config

# Python runs this file before the module that `-m` names, with "-m" as the first argument.
# `python -m tf_fuse doctor` has to start where the library cannot be loaded: it reports why.
# (The original arguments tell us from another package that has a command of this name.)
_is_doctor = _sys.argv[:2] == ["-m", "doctor"] and bool(
    {"tf_fuse", "-mtf_fuse"} & set(_sys.orig_argv)
)

if not _is_doctor:
    _native.load()

    # The options are of no use before the library is there.
    from tf_fuse import collectives, handle_packing, options, parameter_server
    from tf_fuse.parameter_server import gather as _gather
    from tf_fuse.parameter_server import hook as _parameter_server
    from tf_fuse.parameter_server import matmul as _matmul
    from tf_fuse.shard_update import hook as _shard_update
    from tf_fuse.shard_update.report import print_weight_update_report, weight_update_report
    from tf_fuse.shard_update.server_report import (
        plot_server_update_report,
        print_server_update_report,
        server_update_report,
    )

    options.install()
    handle_packing.install(options.packs_handles)
    _shard_update.install(options.shards_updates, options.compiles_updates, options.fuses_updates)
    _parameter_server.install(options.shards_updates, options.fuses_updates)
    _gather.install(options.shards_updates)
    _matmul.install(options.splits_matmuls)

__version__: str = _native.build_info()["tf_fuse"] if not _is_doctor else "unknown"

__all__ = [
    "LibraryMissingError",
    "UnsupportedPlatformError",
    "VersionMismatchError",
    "cluster_metrics",
    "cluster_reports",
    "cluster_waiting",
    "collectives",
    "layout",
    "metrics",
    "parameter_server",
    "plot_server_update_report",
    "print_server_update_report",
    "print_weight_update_report",
    "prometheus_text",
    "server_update_report",
    "session_config",
    "waiting",
    "weight_update_report",
]
