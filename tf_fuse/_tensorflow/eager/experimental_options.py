# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `Context`, so that `set_experimental_options` takes our options.

One method at import, because options reach this package through it; the others when it first gets
one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, AT_IMPORT, Is, Member, Stored, Takes

_MODULE = "tensorflow.python.eager.context"
_CLASS = f"{_MODULE}:Context"
_FEATURES = (feature_names.OPTIONS,)
_SET = Member(
    _CLASS,
    "set_optimizer_experimental_options",
    Takes("self", "options"),
    "Stock TensorFlow stores unknown keys and says nothing of misspelled ones; ours are checked, "
    "and the members that they need are replaced.",
    _FEATURES,
    AT_IMPORT,
)
_GET = Member(
    _CLASS,
    "get_optimizer_experimental_options",
    Takes("self"),
    "Stock TensorFlow leaves out keys that it does not know.",
    _FEATURES,
    AT_FIRST_USE,
)
_CONFIG = Member(
    _CLASS,
    "config",
    Is("property"),
    "Our options travel to all processes in the ConfigProto.",
    _FEATURES,
    AT_FIRST_USE,
)
_CALL_OPTIONS = Member(
    _CLASS,
    "function_call_options",
    Is("property"),
    "Stock TensorFlow renews the options of function calls only in the thread that sets them; the "
    "coordinator calls functions on other threads.",
    _FEATURES,
    AT_FIRST_USE,
)
_STORED = Member(
    _CLASS,
    "_optimizer_experimental_options",
    Stored(),
    "holds all experimental options, ours too",
    (
        feature_names.OPTIONS,
        feature_names.HANDLE_PACKING,
        feature_names.WEIGHT_UPDATES,
        feature_names.PLACEMENT,
    ),
)
MEMBERS = (
    _SET,
    _GET,
    _CONFIG,
    _CALL_OPTIONS,
    _STORED,
    Member(
        _CLASS,
        "_thread_local_data",
        Stored(),
        "holds the options of function calls of a thread",
        _FEATURES,
    ),
    Member(
        f"{_MODULE}:FunctionCallOptions",
        "config_proto_serialized",
        Is("property"),
        "holds the ConfigProto that a thread passes with each call",
        _FEATURES,
    ),
    Member(_MODULE, "context_safe", Takes(), "to find options set before the import", _FEATURES),
)

_generations = itertools.count(1)
_thread = threading.local()


def stored(context: Any) -> dict[str, Any]:
    """Return all experimental options of a context, ours and TensorFlow's."""
    options: dict[str, Any] = context._optimizer_experimental_options
    return options


def config_of_call(context: Any) -> bytes:
    """Return the serialized `ConfigProto` that this thread passes with a call of a function."""
    config: bytes = context.function_call_options.config_proto_serialized
    return config


def extend(
    ours: Collection[str],
    before_set: Callable[[Mapping[str, Any]], None],
    write: Callable[[Any, Mapping[str, Any]], None],
) -> None:
    """Make the context take our options; extend the rest of it when the first one is set.

    Args:
      ours: the keys.
      before_set: checks options before they are stored; it may raise.
      write: writes those of all options that are ours into a ConfigProto.

    Raises:
      Exception: that of `before_set`, for options that were set before.
    """
    from tensorflow.python.eager import context as context_module

    cls = _SET.resolve()
    if monkey_patch.is_replaced(_SET):
        return
    stock_set = cls.set_optimizer_experimental_options

    def set_options(self: Any, options: Mapping[str, Any]) -> None:
        before_set(options)
        is_ours = any(key in options for key in ours)
        if is_ours:
            _extend_use(ours, write)
        stock_set(self, options)
        # Last: a thread that sees the new generation must find the new options.
        if is_ours:
            self._tf_fuse_generation = next(_generations)

    set_options.__doc__ = stock_set.__doc__
    monkey_patch.replace(_SET, set_options)

    # Options that were set before the import of tf_fuse, and calls that were made with them.
    present = context_module.context_safe()
    if present is not None and stored(present):
        before_set(stored(present))
        if any(key in stored(present) for key in ours):
            _extend_use(ours, write)
        present._tf_fuse_generation = next(_generations)


def forget(ours: Collection[str], write: Callable[[Any, Mapping[str, Any]], None]) -> None:
    """Take our options out of the context, and out of the calls of this thread.

    Args:
      ours: the keys.
      write: as of `extend`.
    """
    from tensorflow.python.eager import context as context_module

    context = context_module.context_safe()
    if context is None:
        return
    for key in ours:
        stored(context).pop(key, None)
    kept = context._thread_local_data.function_call_options
    if kept is not None:
        _renew(kept, {}, write)


def _extend_use(ours: Collection[str], write: Callable[[Any, Mapping[str, Any]], None]) -> None:
    """Extend what reads options, once per process."""
    cls = _CONFIG.resolve()
    if monkey_patch.is_replaced(_CONFIG):
        return
    stock_config = cls.config
    stock_get = cls.get_optimizer_experimental_options
    stock_call_options = cls.function_call_options

    def config(self: Any) -> Any:
        proto = stock_config.fget(self)
        options = stored(self)
        if any(key in options for key in ours):
            write(proto, options)
        return proto

    def get_options(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = stock_get(self)
        options = stored(self)
        found.update({key: options[key] for key in sorted(ours) if key in options})
        return found

    def call_options(self: Any) -> Any:
        set_last = getattr(self, "_tf_fuse_generation", 0)
        if getattr(_thread, "generation", 0) != set_last:
            kept = self._thread_local_data.function_call_options
            if kept is not None:
                _renew(kept, stored(self), write)
            _thread.generation = set_last
        return stock_call_options.fget(self)

    def set_call_options(self: Any, options: Any) -> None:
        stock_call_options.fset(self, options)
        # They may be a copy from before our options were set, as function_executor_type restores.
        _thread.generation = 0

    get_options.__doc__ = stock_get.__doc__
    monkey_patch.replace(_GET, get_options)
    monkey_patch.replace(
        _CALL_OPTIONS, property(call_options, set_call_options, doc=stock_call_options.__doc__)
    )
    monkey_patch.replace(_CONFIG, property(config, doc=stock_config.__doc__))


def _renew(
    call_options: Any,
    options: Mapping[str, Any],
    write: Callable[[Any, Mapping[str, Any]], None],
) -> None:
    """Write our options into a thread's options of function calls; leave TensorFlow's alone."""
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto.FromString(call_options.config_proto_serialized)
    write(config, options)
    call_options.config_proto_serialized = config
