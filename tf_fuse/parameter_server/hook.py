# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has `ParameterServerStrategy` ask for the server of each variable that it makes.

TensorFlow's strategy takes the servers in turn. Where the option is on, the method that does so is
replaced by one that asks the strategy's `Placement`; where it is off, it is TensorFlow's own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tf_fuse.parameter_server import saving, whole_gradients, whole_optimizers
from tf_fuse.parameter_server.partition import CostPartitioner, creating
from tf_fuse.parameter_server.placement import Placement
from tf_fuse.parameter_server.spread import PlannedPartitioner
from tf_fuse.parameter_server.traffic import Costs, Variable, bytes_of

_log = logging.getLogger("tf_fuse")

_placements: weakref.WeakKeyDictionary[Any, Placement] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_wholes = itertools.count()
# Whether the option is on, by the eager context, once `install` has said how that is found out.
_is_on: Callable[[Any], bool] = bool
# Whether servers do each update as one operation; None where that is up to `_is_on`.
_fuses: Callable[[Any], bool | None] = bool


class _Thread(threading.local):
    """What this thread is about to make: the same text for all pieces of a variable."""

    whole = ""


_thread = _Thread()


def placement_of(extended: Any) -> Placement:
    """The placement of a strategy's variables; made when first asked for.

    Args:
      extended: of the strategy.
    """
    with _lock:
        placement = _placements.get(extended)
        if placement is None:
            partitioner = extended._variable_partitioner
            is_fused = fuses_updates()
            costs = Costs(workers=max(1, extended._num_workers)).of_updates(is_fused)
            if isinstance(partitioner, CostPartitioner):
                partitioner.adapt(extended._num_ps, extended._num_workers, is_fused)
                costs = partitioner.costs
            placement = _placements[extended] = Placement(extended._num_ps, costs)
        return placement


def fuses_updates() -> bool:
    """Whether servers do each update of this program as one operation, by its options."""
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    wanted = _fuses(context)
    return _is_on(context) if wanted is None else wanted


def set_costs(extended: Any, costs: Costs) -> None:
    """Sets the figures by which a strategy's variables are placed.

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
        _placements[extended] = Placement(extended._num_ps, costs.of_updates(fuses_updates()))


def install(is_on: Callable[[Any], bool], fuses: Callable[[Any], bool | None]) -> None:
    """Extends TensorFlow's strategy, once per process.

    Args:
      is_on: whether variables are to be placed by what they cost, given the eager context.
      fuses: whether servers do each update as one operation, given the context; None: if `is_on`.
    """
    global _is_on, _fuses
    from tensorflow.python.distribute import parameter_server_strategy_v2, sharded_variable
    from tensorflow.python.eager import context as context_module

    _is_on, _fuses = is_on, fuses
    saving.install()
    cls = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    if getattr(cls, "_tf_fuse_places", False):
        return
    stock_create = cls._create_variable
    stock_round_robin = cls._create_variable_round_robin

    def create(self: Any, next_creator: Any, **kwargs: Any) -> Any:
        if not is_on(context_module.context()):
            return stock_create(self, next_creator, **kwargs)
        whole_optimizers.install()
        if "colocate_with" in kwargs:
            made = stock_create(self, next_creator, **kwargs)
            placement_of(self).add_slot(_key(kwargs["colocate_with"]), _bytes(made))
            return made
        is_spread = _is_spread(self, kwargs)
        with _creating(self, kwargs, is_spread):
            extended = _Partitioned(self) if is_spread else self
            made = stock_create(extended, next_creator, **kwargs)
        if isinstance(made, sharded_variable.ShardedVariable):
            saving.save_by_pieces(made)
            whole_gradients.mark(made)
        return made

    def round_robin(self: Any, next_creator: Any, **kwargs: Any) -> Any:
        if not is_on(context_module.context()):
            return stock_round_robin(self, next_creator, **kwargs)
        return _create(self, next_creator, kwargs)

    create.__doc__ = stock_create.__doc__
    round_robin.__doc__ = stock_round_robin.__doc__
    cls._create_variable = create
    cls._create_variable_round_robin = round_robin
    cls._tf_fuse_places = True


class _Partitioned:
    """A strategy's `extended` that has a partitioner; for one variable of one thread."""

    _variable_partitioner = PlannedPartitioner()

    def __init__(self, extended: Any):
        self._extended = extended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extended, name)


def _is_spread(extended: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a plan may have a variable in pieces, though the strategy has no partitioner."""
    if extended._variable_partitioner is not None:
        return False
    return placement_of(extended).may_split(_name(kwargs))


@contextlib.contextmanager
def _creating(extended: Any, kwargs: Mapping[str, Any], is_spread: bool) -> Iterator[None]:
    """Tells the partitioner what is about to be made, and its pieces what they are pieces of."""
    before = _thread.whole, vars(creating).copy()
    creating.name, creating.shape = _name(kwargs), None
    creating.is_fixed = _explicit_server(extended._num_ps, creating.name) is not None
    if is_spread or extended._variable_partitioner is not None:
        creating.planned = placement_of(extended).decisions()
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
    explicit = _explicit_server(extended._num_ps, _name(kwargs))
    shape, dtype = _described(kwargs)
    name, trainable = _name(kwargs), kwargs.get("trainable")
    variable = Variable(name, shape or (), dtype, trainable is None or bool(trainable))
    share = 1.0
    if creating.shape and shape and creating.shape[0]:
        share = shape[0] / creating.shape[0]
    placed = placement.place(variable, explicit, _thread.whole, share, shape is not None)
    device = f"/job:ps/task:{placed.server}/device:CPU:0"
    try:
        # As TensorFlow does: what a program says about colocation or another device of the
        # worker's is not about where variables are.
        with ops.colocate_with(None, ignore_existing=True), ops.device(device):
            made = next_creator(**kwargs)
    except BaseException:
        placement.forget(placed)
        raise
    log = _log.info if os.getenv("TF_PSS_VERBOSE_VARIABLE_PLACEMENT") else _log.debug
    log("tf_fuse: variable %s of shape %s on %s (%s)", name, made.shape, device, placed.why)
    extended._variable_count += 1
    is_known = made.shape.is_fully_defined()
    size = tuple(made.shape.as_list()) if is_known else variable.shape
    dtype = made.dtype.base_dtype.name
    placement.made(placed, replace(placed.variable, shape=size, dtype=dtype), _key(made))
    return made


def _name(kwargs: Mapping[str, Any]) -> str:
    """The name that a variable will have, but for ":0"."""
    from tensorflow.python.framework import ops

    scope = ops.get_name_scope()
    name = kwargs.get("name") or "Variable"
    return f"{scope}/{name}" if scope else str(name)


def _described(kwargs: dict[str, Any]) -> tuple[tuple[int, ...] | None, str]:
    """Finds the shape (None: not known) and the type of a variable that is about to be made.

    A function that makes the initial value is called, once, if nothing else tells the shape; its
    result then takes its place in `kwargs`.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, tensor_shape
    from tensorflow.python.trackable import base

    value, dtype = kwargs.get("initial_value"), kwargs.get("dtype")
    shape = kwargs.get("shape")
    if shape is None and callable(value):
        shape = _keras_shape(value)
        is_plain = not isinstance(value, base.CheckpointInitialValueCallable)
        if shape is None and is_plain and context.executing_eagerly():
            # (As TensorFlow does where there is a partitioner.)
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
    """The tensor that Python's numbers and lists, or objects that are like tensors, stand for.

    None for what is no tensor: the error is the variable's to raise.
    """
    from tensorflow.python.framework import errors, ops

    try:
        with ops.device(None):
            return ops.convert_to_tensor(value, dtype=dtype)
    except (TypeError, ValueError, errors.OpError):
        return None


def _keras_shape(initializer: Any) -> tuple[int, ...] | None:
    """The shape of a Keras 3 variable, which its initializer has, but does not tell TensorFlow."""
    if not (getattr(initializer, "__module__", None) or "").startswith("keras."):
        return None
    names = getattr(getattr(initializer, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(initializer, "__closure__", None) or (), strict=False))
    owner = cells["self"].cell_contents if "self" in cells else None
    shape = getattr(owner, "_shape", None)
    return tuple(shape) if isinstance(shape, (list, tuple)) else None


def _explicit_server(servers: int, name: str) -> int | None:
    """The server that a device scope around the program names; None for none.

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
    """What a variable is found by again, whatever it is wrapped in."""
    return str(getattr(variable, "_unique_id", ""))


def _bytes(variable: Any) -> int:
    shape = variable.shape
    if not shape.is_fully_defined():
        return 0
    return int(shape.num_elements()) * bytes_of(variable.dtype.base_dtype.name)


def strategy_in_scope() -> Any:
    """The `extended` of the strategy in whose scope the program is, if it places variables.

    Returns:
      None in the scope of another strategy, in none, or where the option is off.
    """
    from tensorflow.python.distribute import distribute_lib, parameter_server_strategy_v2
    from tensorflow.python.eager import context as context_module

    extended = distribute_lib.get_strategy().extended
    cls = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    if not isinstance(extended, cls) or not _is_on(context_module.context()):
        return None
    return extended


def extended_of(strategy: Any) -> Any:
    """The `extended` of a `tf.distribute.ParameterServerStrategy`.

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
