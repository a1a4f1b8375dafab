# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make `ParameterServerStrategy` ask for the server of each variable that it creates.

TensorFlow's strategy takes the servers in turn. With the option on, its method asks the strategy's
`Placer` instead; with the option off, TensorFlow's own method runs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tf_fuse import options
from tf_fuse._tensorflow import feature_names as names
from tf_fuse._tensorflow import features
from tf_fuse._tensorflow.keras import variable as keras_variable
from tf_fuse._tensorflow.variables import parameter_server_strategy, resource_variable
from tf_fuse._tensorflow.variables.parameter_server_strategy import (
    count_variable,
    partitioner_of,
    server_count,
    worker_count,
)
from tf_fuse.parameter_server.costs import Costs, VariableSpec, bytes_of
from tf_fuse.parameter_server.partitioning import (
    checkpoint_slices,
    gradient_tape,
    initial_rows,
    keras_optimizers,
    restore_in_parts,
)
from tf_fuse.parameter_server.partitioning.partitioner import CostPartitioner, creating
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.update_spreading import PlannedPartitioner

_log = logging.getLogger("tf_fuse")

_placements: weakref.WeakKeyDictionary[Any, Placer] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_wholes = itertools.count()


class _Thread(threading.local):
    """What this thread is about to make: the same text for all pieces of a variable."""

    whole = ""


_thread = _Thread()


def placement_of(extended: Any) -> Placer:
    """Return the placement of a strategy's variables; made when first asked for.

    Args:
      extended: of the strategy.
    """
    with _lock:
        placement = _placements.get(extended)
        if placement is None:
            partitioner = partitioner_of(extended)
            is_fused = fuses_updates()
            costs = Costs(workers=max(1, worker_count(extended))).of_updates(is_fused)
            if isinstance(partitioner, CostPartitioner):
                partitioner.adapt(server_count(extended), worker_count(extended), is_fused)
                costs = partitioner.costs
            placement = _placements[extended] = Placer(server_count(extended), costs)
        return placement


def strategies() -> list[Any]:
    """Return the strategies (`extended` of each) that have a placement."""
    with _lock:
        return list(_placements)


def fuses_updates() -> bool:
    """Return whether servers do each update of this program as one operation, by its options."""
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    wanted = options.fuses_updates(context)
    return options.is_on(context, "shard_weight_update") if wanted is None else wanted


def set_costs(extended: Any, costs: Costs) -> None:
    """Set the figures by which a strategy's variables are placed.

    Args:
      extended: of the strategy.
      costs: the figures.

    Raises:
      ValueError: variables were placed already.
    """
    with _lock:
        placement = _placements.get(extended)
        if placement is not None and placement.placed():
            raise ValueError(
                f"{len(placement.placed())} variables were placed by other figures already: set "
                "the costs of a strategy before its first variable is made"
            )
        _placements[extended] = Placer(server_count(extended), costs.of_updates(fuses_updates()))


def extend() -> None:
    """Extend TensorFlow's strategy, once per process."""
    from tensorflow.python.distribute import sharded_variable

    def create(stock: Any, self: Any, next_creator: Any, kwargs: dict[str, Any]) -> Any:
        keras_optimizers.install()
        restore_in_parts.install()
        if "colocate_with" in kwargs:
            made = stock(self, next_creator, **kwargs)
            placement_of(self).add_slot(_key(kwargs["colocate_with"]), _bytes(made))
            return made
        is_spread = _is_spread(self, kwargs)
        if is_spread or partitioner_of(self) is not None:
            _set_rows(kwargs)
        with _creating(self, kwargs, is_spread):
            extended = _Partitioned(self) if is_spread else self
            made = stock(extended, next_creator, **kwargs)
        if isinstance(made, sharded_variable.ShardedVariable):
            checkpoint_slices.save_by_pieces(made)
            gradient_tape.mark(made)
        return made

    parameter_server_strategy.extend(options.reader("place_variables"), create, _create)


class _Partitioned:
    """A strategy's `extended` that has a partitioner; for one variable of one thread."""

    _variable_partitioner = PlannedPartitioner()

    def __init__(self, extended: Any):
        self._extended = extended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extended, name)


def _is_spread(extended: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a plan may split a variable though the strategy has no partitioner."""
    if partitioner_of(extended) is not None or not _has_pieces():
        return False
    return placement_of(extended).may_split(_name(kwargs))


def _has_pieces() -> bool:
    """Return whether programs may take variables in pieces for whole ones."""
    return features.works(names.VARIABLES_IN_PIECES)


@contextlib.contextmanager
def _creating(extended: Any, kwargs: Mapping[str, Any], is_spread: bool) -> Iterator[None]:
    """Give the partitioner the variable that is being created, and mark its pieces."""
    before = _thread.whole, vars(creating).copy()
    creating.name, creating.shape = _name(kwargs), None
    creating.is_fixed = _explicit_server(server_count(extended), creating.name) is not None
    if is_spread or partitioner_of(extended) is not None:
        creating.planned = placement_of(extended).decision
        _thread.whole = f"#{next(_wholes)}"
    try:
        yield
    finally:
        _thread.whole = before[0]
        vars(creating).clear()
        vars(creating).update(before[1])


def _create(extended: Any, next_creator: Any, kwargs: dict[str, Any]) -> Any:
    from tensorflow.python.framework import ops

    placement = placement_of(extended)
    explicit = _explicit_server(server_count(extended), _name(kwargs))
    shape, dtype = _described(kwargs)
    name, trainable = _name(kwargs), kwargs.get("trainable")
    variable = VariableSpec(name, shape or (), dtype, trainable is None or bool(trainable))
    share = 1.0
    if creating.shape and shape and creating.shape[0]:
        share = shape[0] / creating.shape[0]
    placed = placement.place(variable, explicit, _thread.whole, share, shape is not None)
    device = f"/job:ps/task:{placed.server}/device:CPU:0"
    try:
        # As in TensorFlow: a program's colocations and its other devices of the
        # worker do not place variables.
        with ops.colocate_with(None, ignore_existing=True), ops.device(device):
            made = next_creator(**kwargs)
    except BaseException:
        placement.forget(placed)
        raise
    log = _log.info if os.getenv("TF_PSS_VERBOSE_VARIABLE_PLACEMENT") else _log.debug
    log("variable %s of shape %s on %s (%s)", name, made.shape, device, placed.why)
    count_variable(extended)
    is_known = made.shape.is_fully_defined()
    size = tuple(made.shape.as_list()) if is_known else variable.shape
    dtype = made.dtype.base_dtype.name
    placement.made(placed, replace(placed.variable, shape=size, dtype=dtype), _key(made))
    return made


def _name(kwargs: Mapping[str, Any]) -> str:
    """Return the name that a variable will have, but for ":0"."""
    from tensorflow.python.framework import ops

    scope = ops.get_name_scope()
    name = kwargs.get("name") or "Variable"
    return f"{scope}/{name}" if scope else str(name)


def _described(kwargs: dict[str, Any]) -> tuple[tuple[int, ...] | None, str]:
    """Find the shape (None: not known) and the type of a variable that is about to be made.

    If nothing else gives the shape, this calls the function of the initial value once, and puts
    its result into `kwargs`.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, tensor_shape
    from tensorflow.python.trackable import base

    value, dtype = kwargs.get("initial_value"), kwargs.get("dtype")
    shape = kwargs.get("shape")
    if shape is None and callable(value):
        shape = keras_variable.initial_shape(value)
        is_plain = not isinstance(value, base.CheckpointInitialValueCallable)
        if shape is None and is_plain and context.executing_eagerly():
            # (As TensorFlow does with a partitioner.)
            value = kwargs["initial_value"] = value()
    if not callable(value) and value is not None:
        if isinstance(value, base.CheckpointInitialValue):
            value = value.wrapped_value
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            value = _converted(value, dtype)
        if value is not None:
            shape = value.shape if shape is None else shape
            dtype = value.dtype if dtype is None else dtype
    kind = dtypes.as_dtype(dtype or "float32").base_dtype.name
    if shape is None or not tensor_shape.as_shape(shape).is_fully_defined():
        return None, kind
    return tuple(tensor_shape.as_shape(shape).as_list()), kind


def _converted(value: Any, dtype: Any) -> Any:
    """Return the tensor of Python numbers, lists, or objects that are like tensors.

    None for other objects: the variable raises the error.
    """
    from tensorflow.python.framework import errors, ops

    try:
        with ops.device(None):
            return ops.convert_to_tensor(value, dtype=dtype)
    except (TypeError, ValueError, errors.OpError):
        return None


def _set_rows(kwargs: dict[str, Any]) -> None:
    """Let TensorFlow ask for the initial values of each piece, if that is possible."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes

    value, dtype = kwargs.get("initial_value"), kwargs.get("dtype")
    if not callable(value) or kwargs.get("shape") is not None or dtype is None:
        return
    shape = keras_variable.initial_shape(value) if context.executing_eagerly() else None
    if shape is None:
        return
    kind = dtypes.as_dtype(dtype)
    initializer = keras_variable.enclosed(value).get("initializer")
    rows = initial_rows.by_rows(value, initializer, shape, kind.name)
    if rows is not None:
        kwargs.update(initial_value=rows, shape=shape, dtype=kind)


def _explicit_server(servers: int, name: str) -> int | None:
    """Return the server that a device scope around the program names; None for none.

    Raises:
      ValueError: there is no such server.
    """
    from tensorflow.python.distribute import device_util
    from tensorflow.python.framework import device as device_module

    spec = device_module.DeviceSpec.from_string(device_util.current() or "")
    if spec.job != "ps" or spec.task is None:
        return None
    if spec.task >= servers:
        raise ValueError(
            f"the variable {name!r} is to be on /job:ps/task:{spec.task}, but the cluster has "
            f"{servers} parameter servers, from task 0 on: change the device scope around it"
        )
    return int(spec.task)


def _key(variable: Any) -> str:
    """Return the key that identifies a variable under any wrapper."""
    return resource_variable.unique_id(variable)


def _bytes(variable: Any) -> int:
    shape = variable.shape
    if not shape.is_fully_defined():
        return 0
    return int(shape.num_elements()) * bytes_of(variable.dtype.base_dtype.name)


def strategy_in_scope() -> Any:
    """Return the `extended` of the strategy in whose scope the program is, if it places variables.

    Returns:
      None in the scope of another strategy, in none, or where the option is off.
    """
    from tensorflow.python.distribute import distribute_lib, parameter_server_strategy_v2
    from tensorflow.python.eager import context as context_module

    extended = distribute_lib.get_strategy().extended
    cls = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    if not isinstance(extended, cls) or not options.is_on(
        context_module.context(), "place_variables"
    ):
        return None
    return extended


def extended_of(strategy: Any) -> Any:
    """Return the `extended` of a `tf.distribute.ParameterServerStrategy`.

    Raises:
      TypeError: it is something else.
    """
    from tensorflow.python.distribute import parameter_server_strategy_v2

    extended = getattr(strategy, "extended", None)
    cls = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    if not isinstance(extended, cls):
        raise TypeError(
            "strategy must be a tf.distribute.ParameterServerStrategy (of TensorFlow 2), got "
            f"{type(strategy).__name__}"
        )
    return extended
