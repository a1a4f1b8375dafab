# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes of a cone what TensorFlow's graph optimizer, Grappler, would make of it.

Grappler changes arithmetic when a function is first run: a division by a square root becomes a
product with `Rsqrt`, factors change places. The last bits change with it. It does not look into an
operation of ours, so what is in there has to be simplified before, by the same optimizer.

It sorts factors by the names of nodes, too. So nodes keep theirs, and what stands for a tensor from
outside has the name of the node that Grappler would find there. In a function that returns nothing
it leaves constants where they are in a chain of sums or products; they are on a device of their own
here then, which has it leave them, too.

It looks beyond a cone, too: a square root of the number that a gradient is divided by becomes
`Rsqrt`, and the division a product. So the elementwise operations in front of a cone are there
(its *front*). What they become without the cone is what the operation can read.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cone_copy import CPU, ConeCopy, Simple
from tf_fuse.shard_update.cones import Cone
from tf_fuse.shard_update.expressions import attributes_of
from tf_fuse.shard_update.graph_view import (
    ASSIGNS,
    READS,
    GraphView,
    data_inputs,
)
from tf_fuse.shard_update.origins import same_as
from tf_fuse.shard_update.twins import Twins

_COMMUTATIVE = frozenset({"Add", "AddV2", "Mul"})


def simplify(
    view: GraphView,
    cone: Cone,
    shapes: Mapping[str, Shape | None],
    config: Any,
    *,
    twins: Twins,
    has_results: bool,
) -> Simple | None:
    """Makes a function of a cone, as Grappler leaves it.

    Args:
      view: of the function that it is of.
      cone: whose tensors all have known shapes.
      shapes: of the function's tensors.
      config: the `ConfigProto` with which the function is called.
      twins: of the function.
      has_results: whether the function, or the one that is called, returns anything.

    Returns:
      The function. Constants are nodes of it. None if there is no telling what the operations in
      front of the cone become.
    """
    options = config.graph_options.SerializeToString(deterministic=True)
    simple = _simplified(ConeCopy(view, cone, shapes, twins, has_results), options)
    if simple is None:
        return None
    # When Grappler takes an IdentityN away is not known here. The name of what it hands on becomes
    # another one then, and what made that can be changed with the cone.
    early = ConeCopy(view, cone, shapes, twins, has_results, early=True)
    others = [early] if early.has_early_names else []
    if early.has_front_behind:
        others.append(ConeCopy(view, cone, shapes, twins, has_results, through=True))
    for copy in others:
        other = _simplified(copy, options)
        if other is None or _signature(view, simple) != _signature(view, other):
            return None
    return simple


def _simplified(copy: ConeCopy, options: bytes) -> Simple | None:
    if copy.is_unclear:
        return None
    copy.make_alike()

    def optimized(graph: Any, fetches: Iterable[str]) -> Any:
        return _optimize(graph.SerializeToString(deterministic=True), tuple(fetches), options)

    front = None if not copy.fronts else optimized(copy.front_only(), copy.front_fetches())
    return copy.read_back(optimized(copy.graph, copy.fetches + copy.readers), front)


# Weights of one layer after another have the same cone, but for names and sizes.
@functools.lru_cache(maxsize=256)
def _optimize(graph: bytes, fetches: tuple[str, ...], graph_options: bytes) -> Any:
    """Runs Grappler.

    Args:
      graph: a serialized `GraphDef`.
      fetches: names of nodes that have to stay.
      graph_options: serialized `GraphOptions`.

    Returns:
      The new `GraphDef`.
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster, tf_optimizer

    wanted = config_pb2.ConfigProto()
    wanted.graph_options.ParseFromString(graph_options)
    options = wanted.graph_options.rewrite_options
    # Ours are for whole programs. The graph is small, but what it is a part of is not.
    del options.custom_optimizers[:]
    options.min_graph_nodes = -1
    # (It would look at the number of nodes again.)
    options.meta_optimizer_iterations = (
        options.meta_optimizer_iterations or rewriter_config_pb2.RewriterConfig.TWO
    )
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.ParseFromString(graph)
    meta.collection_def["train_op"].node_list.value.extend(fetches)
    machine = cluster.Cluster(devices=[_cpu()])
    try:
        return tf_optimizer.OptimizeGraph(wanted, meta, verbose=False, cluster=machine)
    finally:
        machine.Shutdown()


def _cpu() -> Any:
    from tensorflow.core.protobuf import device_properties_pb2

    properties = device_properties_pb2.DeviceProperties(type="CPU", num_cores=1, frequency=1000)
    return device_properties_pb2.NamedDevice(name=CPU, properties=properties)


def _signature(outer: GraphView, simple: Simple) -> list[object]:
    """What a function computes, whatever its nodes are called."""
    view = simple.view
    known: dict[str, object] = {n: same_as(outer, tensor) for n, tensor in simple.inputs.items()}
    assigned: dict[str, int] = defaultdict(int)
    ends: list[object] = []
    for name in simple.nodes:
        node = view.nodes[name]
        read = data_inputs(node)
        if node.op in READS | ASSIGNS:
            variable = simple.variables[read.pop(0)]
            made: object = (node.op, variable, assigned[variable], [known[t] for t in read])
            if node.op in ASSIGNS:
                assigned[variable] += 1
                ends.append(made)
        else:
            made = [known[tensor] for tensor in read]
            if node.op in _COMMUTATIVE:
                made = sorted(made, key=repr)
            made = (node.op, attributes_of(node), made)
        digest = hashlib.sha256(repr(made).encode()).hexdigest()
        known.update(dict.fromkeys(view.outputs(node), digest))
    return [sorted(map(repr, ends)), [known[tensor] for tensor in simple.results]]
