# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Name the features that need private members, and say what happens without each."""

from typing import Final

OPTIONS: Final = "options"
HANDLE_PACKING: Final = "handle packing"
WEIGHT_UPDATES: Final = "weight updates"
PLACEMENT: Final = "placement"
VARIABLES_IN_PIECES: Final = "variables in pieces"
RESTORE_IN_PARTS: Final = "restore in parts"
KERAS_IN_PIECES: Final = "Keras optimizers on pieces"
KERAS_FIT: Final = "Keras fit"
KERAS_PROCESSES: Final = "Keras fit in several processes"
KERAS_FILES: Final = "Keras files of the chief"
KERAS_BACKUPS: Final = "Keras backups within an epoch"
GATHERS: Final = "gathers on servers"
MATMULS: Final = "split matmuls"
COMPRESSION: Final = "compression"
COLLECTIVES: Final = "collectives"
LAYOUT: Final = "layout execution"
LOCAL_CLUSTER: Final = "local cluster"
SCHEDULE: Final = "scheduled calls"
STEPS_IN_FLIGHT: Final = "steps in flight"
PREDICTIONS: Final = "predicted jobs"

#: Features that only read, or change single objects.
REPLACE_NOTHING: Final = frozenset({LAYOUT})
#: By feature, what happens if one of its members has another shape.
WITHOUT: Final = {
    OPTIONS: "no option of tf_fuse has an effect",
    HANDLE_PACKING: "do_pack_handles has no effect",
    WEIGHT_UPDATES: "functions that update weights run as they were traced",
    PLACEMENT: "TensorFlow places the variables of parameter servers",
    VARIABLES_IN_PIECES: "variables in pieces are used as TensorFlow does",
    RESTORE_IN_PARTS: "restoring a checkpoint takes the memory of servers twice",
    KERAS_IN_PIECES: "Keras optimizers are not extended to variables in pieces",
    KERAS_FIT: "Keras's fit, evaluate and predict fail on parameter servers",
    KERAS_PROCESSES: "Keras's fit and evaluate fail under MultiWorkerMirroredStrategy",
    KERAS_BACKUPS: "BackupAndRestore begins an epoch anew",
    KERAS_FILES: "ModelCheckpoint and BackupAndRestore write files in every process",
    GATHERS: "variables on servers are read whole before rows are gathered",
    MATMULS: "split_matmuls has no effect",
    COMPRESSION: "compress has no effect",
    COLLECTIVES: "collectives of one function run one after the other, and each keeps 800 bytes",
    LAYOUT: "layout plans cannot be executed",
    SCHEDULE: "coordinators take longer to schedule a step",
    STEPS_IN_FLIGHT: "steps_in_flight has no effect",
    PREDICTIONS: "tf-fuse plan-cluster may put slots apart from their weights",
    LOCAL_CLUSTER: "TensorFlow may log calls to tasks that have ended",
}
