# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend how `ParameterServerStrategyV2Extended` makes variables on servers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Stored, Takes

_CLASS = (
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended"
)
_FEATURES = (feature_names.PLACEMENT,)
_CREATE = Member(
    _CLASS,
    "_create_variable",
    Takes("self", "next_creator", "kwargs"),
    "Variables are cut by what they cost, and their slots are counted.",
    _FEATURES,
    AT_FIRST_USE,
)
_ROUND_ROBIN = Member(
    _CLASS,
    "_create_variable_round_robin",
    Takes("self", "next_creator", "kwargs"),
    "TensorFlow takes the servers in turn; ours are chosen by load.",
    _FEATURES,
    AT_FIRST_USE,
)
_INIT = Member(
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2",
    "__init__",
    Takes("self", "cluster_resolver", "variable_partitioner"),
    "A worker that makes the strategy would wait for ever: it is an error.",
    (feature_names.KERAS_FIT,),
    AT_FIRST_USE,
)
MEMBERS = (
    _CREATE,
    _ROUND_ROBIN,
    _INIT,
    *(
        Member(_CLASS, name, Stored(), why, (*_FEATURES, *others))
        for name, why, *others in (
            ("_num_ps", "is the number of servers"),
            ("_num_workers", "is the number of workers", feature_names.KERAS_FIT),
            ("_variable_partitioner", "is the partitioner of the program"),
            ("_variable_count", "counts variables; TensorFlow chooses the next server by it"),
            (
                "_being_scheduled",
                "says that a coordinator schedules the function that is traced; if not, TensorFlow "
                "warns that it runs on the coordinator",
                feature_names.KERAS_FIT,
            ),
        )
    ),
)


def extend(
    is_on: Callable[[Any], bool],
    create: Callable[..., Any],
    create_on_server: Callable[..., Any],
) -> None:
    """Extend how the strategy makes variables, once per process.

    Args:
      is_on: whether it is extended, given the eager context; if not, TensorFlow does it.
      create: gets the stock method, and then what that gets.
      create_on_server: gets what the stock method gets.
    """
    from tensorflow.python.eager import context

    cls = _CREATE.resolve()
    if monkey_patch.is_replaced(_CREATE):
        return
    stock_create = cls._create_variable
    stock_round_robin = cls._create_variable_round_robin

    def create_variable(self: Any, next_creator: Any, **kwargs: Any) -> Any:
        if not is_on(context.context()):
            return stock_create(self, next_creator, **kwargs)
        return create(stock_create, self, next_creator, kwargs)

    def round_robin(self: Any, next_creator: Any, **kwargs: Any) -> Any:
        if not is_on(context.context()):
            return stock_round_robin(self, next_creator, **kwargs)
        return create_on_server(self, next_creator, kwargs)

    create_variable.__doc__ = stock_create.__doc__
    round_robin.__doc__ = stock_round_robin.__doc__
    monkey_patch.replace(_CREATE, create_variable)
    monkey_patch.replace(_ROUND_ROBIN, round_robin)


def extend_init(init: Callable[..., None]) -> None:
    """Extend `ParameterServerStrategy.__init__`, once per process.

    Args:
      init: gets the stock method, and then what that gets.
    """
    if monkey_patch.is_replaced(_INIT):
        return
    stock = _INIT.resolve().__init__

    @functools.wraps(stock)
    def extended(self: Any, *args: Any, **kwargs: Any) -> None:
        init(stock, self, *args, **kwargs)

    monkey_patch.replace(_INIT, extended)


def server_count(extended: Any) -> int:
    """Return the number of servers of a strategy."""
    return int(extended._num_ps)


def worker_count(extended: Any) -> int:
    """Return the number of workers of a strategy."""
    return int(extended._num_workers)


@contextlib.contextmanager
def being_scheduled(extended: Any) -> Iterator[None]:
    """Trace as `ClusterCoordinator.schedule` does."""
    extended._being_scheduled = True
    try:
        yield
    finally:
        extended._being_scheduled = False


def partitioner_of(extended: Any) -> Any:
    """Return the partitioner that the program gave to a strategy; None for none."""
    return extended._variable_partitioner


def count_variable(extended: Any) -> None:
    """Count a variable that was made, as TensorFlow does."""
    extended._variable_count += 1
