# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read the graphs that `explain` takes. Nothing in them is run or loaded as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load(path: Path, signature: str) -> Any:
    """Read a GraphDef from a file, or one signature of a SavedModel.

    Args:
      path: a *.pbtxt file (text), any other file (binary), or the folder of a SavedModel.
      signature: key of the signature; for a SavedModel only.

    Returns:
      A `tf.compat.v1.GraphDef`.

    Raises:
      OSError: the file cannot be read.
      ValueError: it holds no graph, or the SavedModel lacks the signature.
    """
    from google.protobuf import message, text_format
    from tensorflow.core.framework import graph_pb2

    if path.is_dir():
        return _load_saved_model(path, signature)
    content = path.read_bytes()
    graph_def = graph_pb2.GraphDef()
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(content.decode("utf-8"), graph_def)
        else:
            graph_def.ParseFromString(content)
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a GraphDef: {error}") from error
    if not graph_def.node:
        raise ValueError(f"{path} is not a GraphDef: it has no nodes")
    return graph_def


def _load_saved_model(folder: Path, signature: str) -> Any:
    """Read the graph of a signature from saved_model.pb.

    The file is parsed directly: `tf.saved_model.load` would place the variables on devices of this
    process, since the devices of the cluster do not exist here.
    """
    from google.protobuf import message
    from tensorflow.core.protobuf import saved_model_pb2

    from tf_fuse.explain import add_output

    file = folder / "saved_model.pb"
    if not file.is_file():
        raise ValueError(f"{folder} is not a SavedModel: it has no file saved_model.pb")
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(file.read_bytes())
    except message.DecodeError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    found = {key: graph for graph in saved.meta_graphs for key in graph.signature_def}
    if signature not in found:
        raise ValueError(f"{folder} has no signature {signature!r}; it has {sorted(found)}")
    meta_graph = found[signature]
    outputs = sorted(
        (info.name, info.dtype)
        for info in meta_graph.signature_def[signature].outputs.values()
        if info.WhichOneof("encoding") == "name"
    )
    if not outputs:
        raise ValueError(
            f"the signature {signature!r} of {folder} returns no dense tensor, so nothing is run"
        )
    graph_def = _above(meta_graph.graph_def, [_node_of(name) for name, _ in outputs])
    for index, (name, dtype) in enumerate(outputs):
        add_output(graph_def, name, dtype, index)
    return graph_def


def _above(graph_def: Any, names: list[str]) -> Any:
    """Return a GraphDef of these nodes and all that they depend on, with all functions."""
    from tensorflow.core.framework import graph_pb2

    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(map(_node_of, nodes[name].input))
    kept = [node for node in graph_def.node if node.name in needed]
    return graph_pb2.GraphDef(node=kept, library=graph_def.library, versions=graph_def.versions)


def _node_of(tensor: str) -> str:
    """Return "node" of "node:0" and of "^node"."""
    return tensor.removeprefix("^").split(":")[0]
