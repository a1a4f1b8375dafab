# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run Grappler, TensorFlow's graph optimizer, on a copy of a cluster.

Grappler changes arithmetic when a function first runs: a division by a square root becomes a
product with `Rsqrt`, factors change their order. The last bits change with that. Grappler does not
look into our operations, so we run the same optimizer on the cluster before we encode it.

Grappler sorts factors by the names of nodes. So nodes keep their names, and an input has the name
of the node that Grappler would find there. In a function without results, Grappler does not move
constants within a chain of sums or products. The copy pins them by placing them on another device.

Grappler also looks beyond a cluster: a square root of the number that divides a gradient becomes
`Rsqrt`, and the division a product. So the copy contains the elementwise producers of the cluster's
inputs, the *front*. The operation can read the tensors that the front has without the cluster.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster
from tf_fuse.fuse_update.analysis.grappler_inputs import same_as
from tf_fuse.fuse_update.grappler.cluster_copy import CPU, ClusterCopy
from tf_fuse.fuse_update.grappler.expression_hashes import COMMUTATIVE, attributes_of
from tf_fuse.fuse_update.grappler.predict_common_subexpressions import CommonSubexpressions
from tf_fuse.fuse_update.grappler.read_back import ReadBack
from tf_fuse.fuse_update.grappler.simplified_cluster import SimplifiedCluster

# TensorFlow's default: no update's function is smaller.
_MIN_GRAPH_NODES = 4


def simplify(
    view: GraphView,
    cluster: FusionCluster,
    shapes: Mapping[str, Shape | None],
    graph_options: bytes,
    *,
    subexpressions: CommonSubexpressions,
    has_results: bool,
    alone: bool = False,
) -> SimplifiedCluster | None:
    """Return a cluster as Grappler leaves it.

    Args:
      view: of the function that contains the cluster.
      cluster: the shapes of all its tensors are known.
      shapes: of the function's tensors.
      graph_options: serialized, with which the function is called.
      subexpressions: of the function.
      has_results: whether the program's call returns anything.
      alone: whether to assume that Grappler does not change the producers of inputs.

    Returns:
      The function with constants as nodes, or None if Grappler's result for the front is unknown.
    """
    make = functools.partial(ClusterCopy, view, cluster, shapes, subexpressions, has_results)
    copy = make(alone=alone)
    simple = _simplified(copy, graph_options)
    if simple is None or alone:
        return simple
    # It is unknown when Grappler removes an IdentityN. Then the input gets another name, and
    # Grappler may change the input's producer together with the cluster. So try both.
    others = []
    if copy.has_early_names:
        others.append((make(early=True), graph_options))
    if copy.has_front_behind:
        others.append((make(through=True), graph_options))
    if (without := _without_optimization(graph_options)) is not None:
        others.append((make(), without))
    for one, options in others:
        other = _simplified(one, options)
        if other is None or _signature(view, simple) != _signature(view, other):
            return None
    return simple


@functools.lru_cache(maxsize=64)
def _without_optimization(graph_options: bytes) -> bytes | None:
    """Return options that change no graph, if others let Grappler skip a graph for its size."""
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.GraphOptions.FromString(graph_options)
    if options.rewrite_options.min_graph_nodes <= _MIN_GRAPH_NODES:
        return None
    options.rewrite_options.disable_meta_optimizer = True
    without: bytes = options.SerializeToString(deterministic=True)
    return without


def _simplified(copy: ClusterCopy, options: bytes) -> SimplifiedCluster | None:
    if copy.is_unclear:
        return None
    copy.make_alike()

    def optimized(graph: Any, fetches: Iterable[str]) -> Any:
        return _optimize(graph.SerializeToString(deterministic=True), tuple(fetches), options)

    front = None if not copy.fronts else optimized(copy.front_only(), copy.front_fetches())
    return ReadBack(copy).read_back(optimized(copy.graph, copy.fetches + copy.readers), front)


# The weights of many layers have the same cluster, except for names and sizes.
@functools.lru_cache(maxsize=256)
def _optimize(graph: bytes, fetches: tuple[str, ...], graph_options: bytes) -> Any:
    """Run Grappler.

    Args:
      graph: a serialized `GraphDef`.
      fetches: names of nodes that Grappler must keep.
      graph_options: serialized `GraphOptions`.

    Returns:
      The new `GraphDef`.
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster, tf_optimizer

    wanted = config_pb2.ConfigProto()
    wanted.graph_options.ParseFromString(graph_options)
    options = wanted.graph_options.rewrite_options
    # Custom optimizers are for whole programs. The graph is part of a large one, so optimize it.
    del options.custom_optimizers[:]
    options.min_graph_nodes = -1
    # (By default Grappler would skip small graphs here, too.)
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


def _signature(outer: GraphView, simple: SimplifiedCluster) -> list[object]:
    """Return what a function computes, without regard to the names of its nodes."""
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
            if node.op in COMMUTATIVE:
                made = sorted(made, key=repr)
            made = (node.op, attributes_of(node), made)
        digest = hashlib.sha256(repr(made).encode()).hexdigest()
        known.update(dict.fromkeys(view.outputs(node), digest))
    return [sorted(map(repr, ends)), [known[tensor] for tensor in simple.results]]
