# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `fit`, `evaluate` and `predict` of Keras 3 on a cluster.

    import tf_fuse.keras

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = keras.Sequential([...])
    model.compile("adam", "mse")
    model.fit(dataset, epochs=3)

Importing this package is enough, also for `MultiWorkerMirroredStrategy` in several processes.
Models that were not made under such a strategy do not change.
docs/keras.md says how data and steps are dealt to workers.
"""

from __future__ import annotations

from tf_fuse.keras import backups, chief_files, loops, processes
from tf_fuse.monitoring.report_callback import ReportCallback

__all__ = ["ReportCallback"]

loops.install()
processes.install()
backups.install()
chief_files.install()
