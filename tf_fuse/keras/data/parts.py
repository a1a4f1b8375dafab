# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of a `tf.data.Dataset` for workers, which read them themselves.

A dataset has parts if its options ask for them: `auto_shard_policy` FILE or DATA. The graph of the
dataset goes to each worker, where TensorFlow divides it as it does under other strategies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from tf_fuse.keras.data.orders import Order

# What workers cannot run: the functions are of the coordinator's process.
_OF_PYTHON: Final = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
_WITH_OWN_HANDLE: Final = ("Cache", "Random", "Shuffle")  # They make what a handle stands for.
_WARN: Final = 0  # `external_state_policy`: of random numbers, each worker draws its own.


@dataclasses.dataclass(frozen=True)
class Parts:
    """A function of an `InputContext` that makes the part of a worker.

    Attributes:
      order: of the whole dataset.
      element_spec: of the dataset.
      policy: by which TensorFlow divides it.
      is_endless: whether the whole dataset is.
    """

    order: Order
    element_spec: Any
    policy: Any
    is_endless: bool

    def __call__(self, context: Any, graph: Any) -> Any:
        """Make the dataset of an input pipeline.

        Args:
          context: the `InputContext`.
          graph: of the whole dataset in this pass, serialized.
        """
        import tensorflow as tf

        whole = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        # Any dataset of the same elements has the types and shapes of its tensors.
        like = tf.data.experimental.from_variant(whole, self.element_spec).skip(0)
        operation = tf.data.experimental.to_variant(like).op
        part = tf.raw_ops.AutoShardDataset(
            input_dataset=whole,
            num_workers=tf.constant(context.num_input_pipelines, tf.int64),
            index=tf.cast(context.input_pipeline_id, tf.int64),
            output_types=operation.get_attr("output_types"),
            output_shapes=operation.get_attr("output_shapes"),
            auto_shard_policy=self.policy.value,
            num_replicas=context.num_input_pipelines,
        )
        options = tf.data.Options()
        options.deterministic = True
        return tf.data.experimental.from_variant(part, self.element_spec).with_options(options)


def are_asked_for(dataset: Any) -> bool:
    """Return whether `x` of `fit` is a dataset whose options ask for parts."""
    import tensorflow as tf

    policies = tf.data.experimental.AutoShardPolicy
    return isinstance(dataset, tf.data.Dataset) and policy_of(dataset) in (
        policies.FILE,
        policies.DATA,
    )


def policy_of(dataset: Any) -> Any:
    """Return the `AutoShardPolicy` of a dataset's options."""
    return dataset.options().experimental_distribute.auto_shard_policy


def of(dataset: Any, policy: Any) -> Parts:
    """Return what makes the parts of a dataset.

    Raises:
      ValueError: workers cannot make it, as it calls Python, or uses a resource of this process.
    """
    import tensorflow as tf

    advice = (
        "give fit a function of an InputContext that makes the dataset, or leave out the option: "
        "then the coordinator reads it"
    )
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_WARN,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise ValueError(
            f"auto_shard_policy is {policy.name}, but the dataset cannot be sent to workers "
            f"({error.message}); {advice}"
        ) from error
    found = tf.compat.v1.GraphDef.FromString(graph.numpy())
    for nodes in [found.node, *(function.node_def for function in found.library.function)]:
        if reason := _why_not(nodes):
            raise ValueError(f"auto_shard_policy is {policy.name}, but {reason}; {advice}")
    is_endless = bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
    return Parts(Order(found), dataset.element_spec, policy, is_endless)


def _why_not(nodes: Sequence[Any]) -> str | None:
    """Return why workers cannot make parts of a dataset, for its nodes or those of a function."""
    import tensorflow as tf

    # (Values of variables and tables travel in the graph.)
    handles = {
        node.name
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum
    }
    for node in nodes:
        if any(one in handles for one in node.input) and not node.op.startswith(_WITH_OWN_HANDLE):
            return (
                f"operation {node.op} of the dataset uses a queue, an iterator or the like of this "
                "process, which workers do not have"
            )
        if node.op in _OF_PYTHON:
            return (
                f"the dataset calls Python (operation {node.op}, as from_generator, py_function "
                "and numpy_function make it), which workers cannot"
            )
    return None
