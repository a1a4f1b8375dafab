# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the functions and classes of TensorFlow's internal modules that this package calls."""

from __future__ import annotations

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import Exists, Is, Member, Takes

_POLYMORPHIC = "tensorflow.python.eager.polymorphic_function"
_UPDATES = (feature_names.WEIGHT_UPDATES,)
_LAYOUT = (feature_names.LAYOUT,)
_XLA = Member(
    "tensorflow.python.util._pywrap_util_port",
    "IsBuiltWithXLA",
    Exists(),
    "to know whether updates can be compiled",
    _UPDATES,
)
MEMBERS = (
    Member(
        "tensorflow.python.grappler.tf_optimizer",
        "OptimizeGraph",
        Takes(
            "config_proto",
            "metagraph",
            "verbose",
            "graph_id",
            "cluster",
            "strip_default_attributes",
        ),
        "to see the operations of an update as Grappler leaves them",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.grappler.cluster",
        "Cluster",
        Is("type"),
        "is the machine that Grappler optimizes for",
        _UPDATES,
    ),
    _XLA,
    Member(
        "tensorflow.python.framework.op_def_registry",
        "get",
        Takes("name"),
        "holds the signatures of operations",
        (feature_names.WEIGHT_UPDATES, feature_names.LAYOUT),
    ),
    Member(
        "tensorflow.python.ops.handle_data_util",
        "get_resource_handle_data",
        Takes("graph_op"),
        "holds the shapes of variables in graphs",
        (feature_names.WEIGHT_UPDATES, feature_names.LAYOUT),
    ),
    Member(
        "tensorflow.python.ops.handle_data_util",
        "set_handle_data",
        Takes("target_t", "handle_data"),
        "to infer the shapes of a graph again",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.framework.importer",
        "import_graph_def",
        Takes("graph_def", "input_map", "return_elements", "name", "op_dict", "producer_op_list"),
        "to infer the shapes of a graph again",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.framework.tensor_util",
        "try_evaluate_constant",
        Takes("tensor"),
        "to infer shapes that values say",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.eager.record",
        "stop_recording",
        Exists(),
        "to read variables without telling tapes",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.eager.record",
        "could_possibly_record",
        Takes(),
        "to know whether a tape may use a handle later",
        _UPDATES,
    ),
    Member(
        "tensorflow.python.eager.record",
        "record_operation",
        Takes(
            "op_type", "output_tensors", "input_tensors", "backward_function", "forward_function"
        ),
        "to tell tapes that a value is a variable's",
        _LAYOUT,
    ),
    Member(
        "tensorflow.python.framework.auto_control_deps_utils",
        "get_read_write_resource_inputs",
        Takes("op"),
        "to know which variables an operation writes",
        _LAYOUT,
    ),
    Member(
        f"{_POLYMORPHIC}.function_type_utils",
        "canonicalize_function_inputs",
        Takes("args", "kwargs", "function_type", "default_values", "is_pure"),
        "to bind arguments as a `tf.function` does",
        _LAYOUT,
    ),
    Member(
        "tensorflow.python.checkpoint.tensor_callable",
        "Callable",
        Is("type"),
        "to put a value together when a checkpoint is written",
        _LAYOUT,
    ),
    Member(
        "tensorflow.python.saved_model.save_context",
        "in_save_context",
        Takes(),
        "to leave functions alone that are traced for an exported model",
        _LAYOUT,
    ),
    Member(
        "tensorflow.dtensor.python.config",
        "num_clients",
        Takes(),
        "to know how many processes run",
        _LAYOUT,
    ),
    Member(
        "tensorflow.python.distribute.device_util",
        "current",
        Takes(),
        "to see the device scope around a variable",
        (feature_names.PLACEMENT,),
    ),
)


def is_built_with_xla() -> bool:
    """Return whether this TensorFlow can compile functions."""
    return bool(_XLA.resolve().IsBuiltWithXLA())
