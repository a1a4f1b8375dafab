# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reduce the communication of distributed training with stock TensorFlow.

Importing this package loads the plugin: it adds the server protocol "grpc+fuse" and the option
"do_fuse_recv" of `tf.config.optimizer.set_experimental_options`. Nothing changes until a program
uses both, except that collectives are ours wherever all members run the protocol.

    import tensorflow as tf
    import tf_fuse

    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})

Layouts, placement and reports are imported when a program first uses them. `import tf_fuse.layout`
needs no TensorFlow; the plugin is loaded then as soon as something imports TensorFlow.
"""

import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING, Any

from tf_fuse import _importing, _log, _native, _patching, _removed_variables
from tf_fuse._native import LibraryMissingError, UnsupportedPlatformError, VersionMismatchError
from tf_fuse._patching import uninstall
from tf_fuse.monitoring.metrics import cluster_metrics, cluster_reports, metrics
from tf_fuse.monitoring.waiting import cluster_waiting, waiting
from tf_fuse.sessions import session_config

if TYPE_CHECKING:
    from tf_fuse import collectives, layout, parameter_server, report
    from tf_fuse.monitoring.summaries import write_summaries
    from tf_fuse.parameter_server.staleness_report import (
        plot_server_update_report,
        print_server_update_report,
        server_update_report,
    )
    from tf_fuse.prometheus import prometheus_text
    from tf_fuse.shard_update.report import print_weight_update_report, weight_update_report

_NOT_STARTED = "unknown"
__version__: str = _NOT_STARTED

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
    "report",
    "server_update_report",
    "session_config",
    "uninstall",
    "waiting",
    "weight_update_report",
    "write_summaries",
]

# Names that are imported when they are first used (PEP 562), and the modules that have them.
_LAZY_MODULES = ("collectives", "layout", "parameter_server", "report")
_LAZY_NAMES = {
    "plot_server_update_report": "tf_fuse.parameter_server.staleness_report",
    "print_server_update_report": "tf_fuse.parameter_server.staleness_report",
    "print_weight_update_report": "tf_fuse.shard_update.report",
    "prometheus_text": "tf_fuse.prometheus",
    "server_update_report": "tf_fuse.parameter_server.staleness_report",
    "weight_update_report": "tf_fuse.shard_update.report",
    "write_summaries": "tf_fuse.monitoring.summaries",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _importlib.import_module(f"tf_fuse.{name}")
    if name in _LAZY_NAMES:
        found = getattr(_importlib.import_module(_LAZY_NAMES[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tf_fuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _start() -> None:
    """Load the library and extend TensorFlow, once per process.

    Raises:
      ImportError: one of the three that `_native.load` raises.
    """
    global __version__
    if __version__ != _NOT_STARTED:
        return
    _native.load()
    # Now, because this module registers the gradients of its operations.
    _importlib.import_module("tf_fuse.collectives")
    _patching.install()
    __version__ = _native.build_info()["tf_fuse"]
    if _os.environ.get("TF_FUSE_REPORT_DIR"):
        from tf_fuse.report import folder

        folder.start()


_log.install()
_removed_variables.warn()
# The commands `python -m tf_fuse` and `tf-fuse` start the package themselves, because `doctor` has
# to run where the library cannot be loaded.
if _importing.purpose.is_imported_for("tf_fuse.layout"):
    _importlib.import_module("tf_fuse._importing.with_tensorflow").call(_start)
elif not _importing.first_signal.IS_COMMAND:
    _start()
