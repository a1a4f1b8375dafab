# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Build the graphs of `explain --example`: training steps on tasks that need not exist.

Nothing is trained: the graphs have the shape of a step on parameter servers (keys go to the
servers, rows and weights come back, gradients go to the servers), which is all that decides what is
fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


def build(name: str) -> Any:
    """Build an example.

    Args:
      name: a key of `EXAMPLES`.

    Returns:
      A `tf.compat.v1.GraphDef` with static shapes in the attribute `_output_shapes`.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        EXAMPLES[name]()
    return graph.as_graph_def(add_shapes=True)


def _server(index: int, servers: int) -> str:
    return f"/job:ps/replica:0/task:{index % servers}/device:CPU:0"


class _Variable:
    """A variable of a server, which is read and updated as by an optimizer without slots."""

    def __init__(self, name: str, shape: list[int], device: str):
        import tensorflow as tf

        self._raw = tf.raw_ops
        self.shape = shape
        with tf.device(device):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=shape, shared_name=name, name=name
            )

    def read(self, name: str) -> Any:
        import tensorflow as tf

        with tf.device(self._handle.device):
            value = self._raw.ReadVariableOp(resource=self._handle, dtype=tf.float32, name=name)
            value.set_shape(self.shape)
            return value

    def lookup(self, keys: Any, name: str) -> Any:
        import tensorflow as tf

        with tf.device(self._handle.device):
            rows = self._raw.ResourceGather(
                resource=self._handle, indices=keys, dtype=tf.float32, name=name
            )
            rows.set_shape([keys.shape[0], *self.shape[1:]])
            return rows

    def subtract(self, gradient: Any, keys: Any = None) -> Any:
        import tensorflow as tf

        with tf.device(self._handle.device):
            if keys is None:
                return self._raw.AssignSubVariableOp(resource=self._handle, value=gradient)
            return self._raw.ResourceScatterSub(
                resource=self._handle, indices=keys, updates=gradient
            )


def _step(
    tables: dict[str, list[int]], layers: list[int], servers: int, shards: int, batch: int
) -> None:
    """Build one step of a model of embeddings and dense layers.

    Args:
      tables: name to [rows, columns] of each embedding.
      layers: units of the dense layers.
      servers: number of servers; variables go to them in turn.
      shards: number of parts of each embedding; part k has the rows whose number is k modulo it.
      batch: examples.
    """
    import tensorflow as tf

    count = 0
    lookups = []
    for name, (rows, columns) in tables.items():
        with tf.device(_WORKER):
            keys = tf.compat.v1.placeholder(tf.int64, [batch], name=f"{name}_keys")
        for shard in range(shards):
            part = f"{name}_part{shard}" if shards > 1 else name
            with tf.device(_WORKER):
                own = tf.identity(keys // shards, name=f"{part}_keys_sent")
            table = _Variable(part, [rows // shards, columns], _server(count, servers))
            lookups.append((table, own, table.lookup(own, f"{part}_rows")))
            count += 1
    dense = []
    width = sum(columns for _, columns in tables.values()) * shards
    for i, units in enumerate(layers):
        for what, shape in (("kernel", [width, units]), ("bias", [units])):
            variable = _Variable(f"dense{i}_{what}", shape, _server(count, servers))
            dense.append((variable, variable.read(f"dense{i}_{what}_value")))
            count += 1
        width = units
    with tf.device(_WORKER):
        embedded = [tf.identity(rows) for _, _, rows in lookups]
        values = tf.concat(embedded, axis=1)
        weights = [tf.identity(value) for _, value in dense]
        for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
            values = tf.nn.relu(tf.matmul(values, kernel) + bias)
        loss = tf.reduce_mean(values, name="loss")
        gradients = tf.gradients(loss, embedded + weights)
    for (table, keys, _), gradient in zip(lookups, gradients, strict=False):
        table.subtract(gradient, keys)
    for (variable, _), gradient in zip(dense, gradients[len(lookups) :], strict=True):
        variable.subtract(gradient)


def _features() -> None:
    _step({f"feature{i}": [1000, 16] for i in range(300)}, [64, 1], 2, 1, 64)


def _wide_deep() -> None:
    tables = {f"deep{i}": [10_000, 16] for i in range(26)}
    tables |= {f"wide{i}": [10_000, 1] for i in range(26)}
    _step(tables, [256, 128, 1], 2, 1, 128)


def _rfc() -> None:
    _step({f"embedding{i}": [10_000, 16] for i in range(40)}, [256, 128, 1], 1, 4, 128)


def _cond() -> None:
    """Return a conditional whose branches each read two variables of a server, and its consumer."""
    import tensorflow as tf

    def total(server: int) -> Any:
        names = [f"server{server}_{name}" for name in ("scale", "shift")]
        read = [_Variable(name, [16], _server(server, 2)).read(f"{name}_value") for name in names]
        return tf.add_n(read, name=f"total{server}")

    with tf.device(_WORKER):
        first = tf.compat.v1.placeholder(tf.bool, [], name="first")
        chosen = tf.cond(first, lambda: total(0), lambda: total(1), name="choice")
        results = [tf.identity(chosen, name="chosen"), tf.negative(chosen, name="negated")]
    for i, result in enumerate(results):
        _Variable(f"result{i}", [16], _server(0, 2)).subtract(result)


def _dense() -> None:
    _step({"keys": [1000, 512]}, [512] * 12, 2, 1, 64)


def _loop() -> None:
    """Build four steps in a loop: rows of six tables in, their gradients out."""
    import tensorflow as tf

    with tf.device(_WORKER):
        keys = tf.compat.v1.placeholder(tf.int64, [4, 6, 64], name="keys")

        def step(i: Any, total: Any) -> tuple[Any, Any]:
            # In the loop, as in a run: their handles are not carried round from task to task.
            tables = [_Variable(f"table{k}", [1000, 16], _server(k, 2)) for k in range(6)]
            with tf.device(_WORKER):
                batch = tf.ensure_shape(keys[i], keys.shape[1:])
                own = [tf.identity(batch[k], name=f"keys{k}") for k in range(len(tables))]
            rows = [t.lookup(k, "rows") for t, k in zip(tables, own, strict=True)]
            with tf.device(_WORKER):
                out = tf.tanh(tf.add_n(rows))
                gradients = [tf.multiply(out, r, name="gradient") for r in rows]
            done = []
            for table, key, gradient in zip(tables, own, gradients, strict=True):
                done.append(table.subtract(gradient, key))
            with tf.device(_WORKER), tf.control_dependencies(done):
                return i + 1, total + tf.reduce_sum(out)

        tf.while_loop(lambda i, _: i < 4, step, [tf.constant(0), tf.constant(0.0)], name="steps")


#: Name to the function that adds the nodes to the default graph.
EXAMPLES: dict[str, Callable[[], None]] = {
    "cond": _cond,
    "dense": _dense,
    "features": _features,
    "loop": _loop,
    "rfc": _rfc,
    "wide_deep": _wide_deep,
}
