# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of `tf.config.optimizer.set_experimental_options` that are ours.

Stock TensorFlow stores unknown keys and drops them when it builds the `ConfigProto`. We extend the
eager context so that our keys travel in that proto, as the parameters of a custom graph optimizer
named "tf_fuse". The proto reaches every process that runs a function, so no environment variable is
needed; a process without the plugin ignores the entry.
"""

from __future__ import annotations

import difflib
import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTIMIZER_NAME = "tf_fuse"


@dataclass(frozen=True)
class Option:
    """One key: its type, what it does, which values it takes (None: any), where it has a use.

    A whole number is 0 or more, and none of `none_of`.

    What is not `in_config` is carried out by the process that calls functions, and by no other.
    """

    key: str
    type: type
    doc: str
    choices: tuple[str, ...] | None = None
    in_sessions: bool = True
    in_config: bool = True
    none_of: tuple[int, ...] = ()


OPTIONS: dict[str, Option] = {
    option.key: option
    for option in (
        Option(
            "do_fuse_recv",
            bool,
            "Receive the tensors of one task together, in one RPC per graph level. Needs servers "
            "that run the protocol 'grpc+fuse'. Applies to functions called from then on.",
        ),
        Option(
            "do_pack_handles",
            bool,
            "Pass the handles of a server's variables to a function as one value. On unless set "
            "to False, but only together with do_fuse_recv.",
            in_sessions=False,
        ),
        Option(
            "do_fuse_gpu",
            bool,
            "Together with do_fuse_recv: fuse receives from and to GPUs too. Off unless set to "
            "True: its copies have not been run on a GPU by the project yet.",
        ),
        Option(
            "do_pack_sends",
            bool,
            "Have the graph of the sending task pack what is received together, by one operation, "
            "where that is possible, together with do_fuse_recv. Off unless set to True: how long "
            "each tensor was waited for is then not known.",
            in_sessions=False,
        ),
        Option(
            "fuse_grouping",
            str,
            "Which tensors of a graph level share a call: all but those that would wait longer "
            "than a call takes ('cost', the default), all of them ('level'), or those that the "
            "same node uses first ('consumer'); or, whatever the level, those that wait at the "
            "same time ('dynamic').",
            ("level", "consumer", "cost", "dynamic"),
        ),
        Option(
            "fuse_rpc_us",
            float,
            "For 'cost': by how many microseconds a call delays those after it. Measured once per "
            "worker unless given.",
        ),
        Option(
            "fuse_gigabytes_per_s",
            float,
            "For 'cost': how fast a tensor travels, in 1e9 bytes per second; 1.0 unless given.",
        ),
        Option(
            "shard_weight_update",
            bool,
            "Cut the update of the weights over the replicas of a MultiWorkerMirroredStrategy or a "
            "MirroredStrategy, so that each computes a part and keeps that part of the optimizer's "
            "state. Needs workers that run the protocol 'grpc+fuse'. Applies to functions that are "
            "called for the first time from then on. Under a ParameterServerStrategy, place "
            "variables that are made from then on by their bytes and traffic, gather rows where "
            "the variable is, and switch fuse_weight_update on.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_always",
            bool,
            "Together with shard_weight_update: cut an update also where the step takes longer "
            "then, by an estimate; the optimizer's state takes less memory anyway.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_exact",
            bool,
            "Together with shard_weight_update: leave updates alone that would not have the bits "
            "of whole ones, since they have sums that are added in another order (norms, means). "
            "Together with fuse_weight_update on parameter servers: those whose bits are not known "
            "to be the same.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_group_size",
            int,
            "Together with shard_weight_update: how many replicas share one copy of the "
            "optimizer's state, a divisor of their number. 0, the default: all of them. With less, "
            "each group of so many consecutive replicas has a copy, so that the state outlives a "
            "replica that dies, and fewer of them exchange weights.",
            in_sessions=False,
            in_config=False,
            none_of=(1,),
        ),
        Option(
            "shard_weight_update_gather",
            str,
            "Together with shard_weight_update: gather the new weights at the end of a step "
            "('end', the default), or right before their first use in the next one ('first_use'); "
            "between steps they are in parts then, as the optimizer's state.",
            ("end", "first_use"),
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_gather_bfloat16",
            bool,
            "Together with shard_weight_update_gather='first_use': a weight that the step only "
            "casts to bfloat16 (or float16) travels in that type.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "compile_weight_update",
            bool,
            "Have XLA compile the elementwise operations of each weight's update, whether it is "
            "cut or not, on CPUs. Off unless set to True: the last bits of weights may be others. "
            "Applies to functions called from then on.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "fuse_weight_update",
            bool,
            "Have one operation do the elementwise operations of each weight's update, whether it "
            "is cut or not, in one pass over memory and under one lock; values have the same bits, "
            "but for those of some optimizers on parameter servers. "
            "Unless it is set, on for functions that shard_weight_update looks at or that have "
            "parameter servers while that is on, and off for all others; of no effect together "
            "with compile_weight_update. Applies to functions called from then on.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "split_matmuls",
            bool,
            "Multiply by the pieces of a variable that a partitioner has split, in place of "
            "putting them together on the worker, in functions that are traced from then on. Off "
            "unless set to True: sums are added in another order, so last bits differ.",
            in_sessions=False,
            in_config=False,
        ),
    )
}

# A key that TensorFlow does not know, but with one of these words, is meant for us.
_WORDS = {
    "do_fuse_recv": {"fuse", "fused", "fusing", "rcv", "receive", "receives", "recv", "recvs"},
    "do_pack_handles": {"handle", "handles", "pack", "packed", "packs"},
    "do_pack_sends": {"send", "sender", "senders", "sends"},
    "shard_weight_update": {"shard", "sharded", "sharding", "shards", "update", "updates"},
    "split_matmuls": {"matmul", "matmuls"},
    "compile_weight_update": {"compile", "compiled", "compiles"},
}

# What stock TensorFlow accepts; a key near one of these is not a misspelling of ours.
_STOCK_KEYS = frozenset(
    {
        "arithmetic_optimization",
        "auto_mixed_precision",
        "auto_mixed_precision_mkl",
        "auto_mixed_precision_onednn_bfloat16",
        "constant_folding",
        "debug_stripper",
        "dependency_optimization",
        "disable_meta_optimizer",
        "disable_model_pruning",
        "function_optimization",
        "implementation_selector",
        "layout_optimizer",
        "loop_optimization",
        "min_graph_nodes",
        "pin_to_host_optimization",
        "remapping",
        "scoped_allocator_optimization",
        "shape_optimization",
        "use_plugin_optimizers",
    }
)


def validate(options: Mapping[str, Any]) -> None:
    """Checks the keys and values that are ours; leaves all others to TensorFlow.

    Args:
      options: what was passed to `set_experimental_options`.

    Raises:
      ValueError: a key is a misspelling of one of ours; the text has the nearest right key.
      ValueError: a value is none that the option takes; the text has both.
      TypeError: a value has the wrong type; the text has both types.
    """
    for key, value in options.items():
        option = OPTIONS.get(key)
        if option is not None:
            # A whole number is a number, but True is not.
            if type(value) is not option.type and (type(value), option.type) != (int, float):
                article = "an" if option.type is int else "a"
                raise TypeError(
                    f"the option {key!r} of tf_fuse takes {article} {option.type.__name__}, got "
                    f"{value!r} of type {type(value).__name__}"
                )
            if option.type is int and (value < 0 or value in option.none_of):
                others = "".join(f" but {one}" for one in option.none_of)
                raise ValueError(
                    f"the option {key!r} of tf_fuse is a whole number from 0 on{others}, got "
                    f"{value!r}"
                )
            if option.choices is not None and value not in option.choices:
                raise ValueError(
                    f"the option {key!r} of tf_fuse is one of {list(option.choices)}, got {value!r}"
                )
            if option.type is float and not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"the option {key!r} of tf_fuse is a positive number, got {value!r}"
                )
            continue
        if key in _STOCK_KEYS or not isinstance(key, str):
            continue
        meant = _meant(key)
        if meant is not None:
            raise ValueError(
                f"unknown option {key!r}; did you mean {meant!r}? The options of tf_fuse are: "
                + ", ".join(sorted(OPTIONS))
            )


def _meant(key: str) -> str | None:
    """Our option that an unknown key is a misspelling of; None if it is none of ours."""
    folded = key.lower().replace("-", "_")
    nearest = difflib.get_close_matches(folded, [*OPTIONS, *sorted(_STOCK_KEYS)], 1, 0.7)
    if nearest:
        return nearest[0] if nearest[0] in OPTIONS else None
    words = set(folded.split("_"))
    return next((option for option in sorted(OPTIONS) if words & _WORDS.get(option, set())), None)


def add_to_config(config: Any, options: Mapping[str, Any]) -> None:
    """Writes our options that are on into a ConfigProto; nothing if all are off.

    Args:
      config: a `tf.compat.v1.ConfigProto`, changed in place. An entry of ours that it holds
        already is replaced.
      options: all experimental options, ours and TensorFlow's.
    """
    rewrite = config.graph_options.rewrite_options
    kept = [entry for entry in rewrite.custom_optimizers if entry.name != OPTIMIZER_NAME]
    had_entry = len(kept) != len(rewrite.custom_optimizers)
    ours = {k: options[k] for k in sorted(OPTIONS) if options.get(k) and OPTIONS[k].in_config}
    if had_entry:
        entries = [entry.SerializeToString() for entry in kept]
        del rewrite.custom_optimizers[:]
        for entry in entries:
            rewrite.custom_optimizers.add().ParseFromString(entry)
    # The others say how, not whether.
    if not any(OPTIONS[key].type is bool for key in ours):
        return
    entry = rewrite.custom_optimizers.add()
    entry.name = OPTIMIZER_NAME
    for key, value in ours.items():
        parameter = entry.parameter_map[key]
        if OPTIONS[key].type is bool:
            parameter.b = value
        elif OPTIONS[key].type is float:
            parameter.f = value
        elif OPTIONS[key].type is int:
            parameter.i = value
        else:
            parameter.s = value.encode()


def packs_handles(context: Any) -> bool:
    """Whether a function that this context calls gets its handles packed."""
    options = context._optimizer_experimental_options
    return bool(options.get("do_fuse_recv") and options.get("do_pack_handles", True))


def shards_anything(context: Any) -> bool:
    """Whether updates are cut that take longer then."""
    return bool(context._optimizer_experimental_options.get("shard_weight_update_always"))


def demands_bits(context: Any) -> bool:
    """Whether updates are left alone that would not have the bits of whole ones."""
    return bool(context._optimizer_experimental_options.get("shard_weight_update_exact"))


def group_size(context: Any) -> int:
    """How many replicas share one copy of the optimizer's state; 0: all."""
    return int(context._optimizer_experimental_options.get("shard_weight_update_group_size", 0))


def gathers_first(context: Any) -> bool:
    """Whether weights are gathered right before their first use."""
    options = context._optimizer_experimental_options
    return bool(options.get("shard_weight_update_gather") == "first_use")


def gathers_narrow(context: Any) -> bool:
    """Whether weights that are gathered before their first use may travel in a narrower type."""
    options = context._optimizer_experimental_options
    return bool(options.get("shard_weight_update_gather_bfloat16"))


def shards_updates(context: Any) -> bool:
    """Whether updates of weights in functions that this context calls are cut over replicas."""
    return bool(context._optimizer_experimental_options.get("shard_weight_update"))


def compiles_updates(context: Any) -> bool:
    """Whether updates of weights in functions that this context calls are compiled."""
    return bool(context._optimizer_experimental_options.get("compile_weight_update"))


def fuses_updates(context: Any) -> bool | None:
    """Whether each update of a weight in functions that this context calls is one operation.

    Returns:
      None if the program does not say: then it is one where `shard_weight_update` looks at it.
    """
    is_on = context._optimizer_experimental_options.get("fuse_weight_update")
    return None if is_on is None else bool(is_on)


def splits_matmuls(context: Any) -> bool:
    """Whether graphs that are built multiply by the pieces of a variable."""
    return bool(context._optimizer_experimental_options.get("split_matmuls"))


def _renew(call_options: Any, options: Mapping[str, Any]) -> None:
    """Writes our options into a thread's options of function calls; leaves TensorFlow's alone."""
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto.FromString(call_options.config_proto_serialized)
    add_to_config(config, options)
    call_options.config_proto_serialized = config


def install() -> None:
    """Extends TensorFlow's eager context, once per process.

    Raises:
      ValueError, TypeError: options of ours were set before, and wrongly; see `validate`.
    """
    from tensorflow.python.eager import context as context_module

    cls = context_module.Context
    if getattr(cls, "_tf_fuse_installed", False):
        return
    stock_config = cls.config.fget
    stock_get = cls.get_optimizer_experimental_options
    stock_set = cls.set_optimizer_experimental_options
    stock_call_options = cls.function_call_options

    def config(self: Any) -> Any:
        proto = stock_config(self)
        stored = self._optimizer_experimental_options
        if any(key in stored for key in OPTIONS):
            add_to_config(proto, stored)
        return proto

    def get_options(self: Any) -> dict[str, Any]:
        options = stock_get(self)
        stored = self._optimizer_experimental_options
        options.update({key: stored[key] for key in sorted(OPTIONS) if key in stored})
        return options

    def set_options(self: Any, options: Mapping[str, Any]) -> None:
        validate(options)
        stock_set(self, options)
        # Last: a thread that sees the new generation must find the new options.
        if any(key in options for key in OPTIONS):
            self._tf_fuse_generation = next(generations)

    # Stock TensorFlow keeps the options of function calls per thread, and setting an option renews
    # only those of the thread that sets it. The coordinator calls functions on threads of its own.
    generations = itertools.count(1)
    thread = threading.local()

    def call_options(self: Any) -> Any:
        set_last = getattr(self, "_tf_fuse_generation", 0)
        if getattr(thread, "generation", 0) != set_last:
            kept = self._thread_local_data.function_call_options
            if kept is not None:
                _renew(kept, self._optimizer_experimental_options)
            thread.generation = set_last
        return stock_call_options.fget(self)

    def set_call_options(self: Any, call_options: Any) -> None:
        stock_call_options.fset(self, call_options)
        # They may be a copy from before our options were set, as function_executor_type restores.
        thread.generation = 0

    config.__doc__ = cls.config.__doc__
    get_options.__doc__ = stock_get.__doc__
    set_options.__doc__ = stock_set.__doc__
    cls.config = property(config)
    cls.get_optimizer_experimental_options = get_options
    cls.set_optimizer_experimental_options = set_options
    cls.function_call_options = property(
        call_options, set_call_options, doc=stock_call_options.__doc__
    )
    cls._tf_fuse_installed = True

    # Options that were set before the import of tf_fuse, and calls that were made with them.
    present = context_module.context_safe()
    if present is not None and present._optimizer_experimental_options:
        validate(present._optimizer_experimental_options)
        present._tf_fuse_generation = next(generations)
