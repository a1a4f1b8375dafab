# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add our options to `tf.config.optimizer.set_experimental_options`.

Stock TensorFlow stores unknown keys and drops them when it builds the `ConfigProto`. We extend the
eager context so that our keys travel in that proto, as the parameters of a custom graph optimizer
named "tf_fuse". The proto reaches every process that runs a function, so no environment variable is
needed; a process without the plugin ignores the entry.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tf_fuse._tensorflow.eager import experimental_options
from tf_fuse.options.table import OPTIONS

OPTIMIZER_NAME = "tf_fuse"

# What the option "tf_fuse" switches on.
SWITCHED_ON = ("do_fuse_recv", "shard_weight_update", "shard_weight_update_exact")
# What "shard_weight_update" switches on under a ParameterServerStrategy. (Not "fuse_weight_update":
# only the function that is called shows whether that is on by default.)
ON_SERVERS = ("place_variables", "gather_on_servers")

# Options of earlier versions: what to do without each.
REMOVED: dict[str, str] = {
    "do_pack_sends": "tf_fuse has removed it, since it did not make steps faster on servers; the "
    "sender's request handler packs all frames. Leave it out.",
}

# A key that TensorFlow does not know, but with one of these words, is meant for us: for the first
# option that has one of its words.
_WORDS = {
    "compile_weight_update": {"compile", "compiled", "compiles"},
    "compress": {"bf16", "bfloat16", "compress", "compressed", "compresses", "compression"},
    # Before "do_fuse_recv", whose words include "fuse".
    "fuse_lookups_combine": {"combine", "combined", "combiner", "combiners", "combines"},
    "fuse_lookups_unique": {"dedup", "deduplicate", "lookup", "lookups", "unique"},
    "do_fuse_recv": {"fuse", "fused", "fusing", "rcv", "receive", "receives", "recv", "recvs"},
    "do_pack_handles": {"handle", "handles", "pack", "packed", "packs"},
    "shard_weight_update": {"shard", "sharded", "sharding", "shards", "update", "updates"},
    "split_matmuls": {"matmul", "matmuls"},
    "steps_in_flight": {"flight", "inflight"},
    # After "shard_weight_update", whose own keys also say "gather".
    "gather_on_servers": {"gather", "gathered", "gathers"},
    "place_variables": {"place", "placed", "placement", "places"},
}

# The keys of stock TensorFlow: a key similar to one of these is not a misspelling of ours.
_STOCK_KEYS = frozenset(
    {
        "arithmetic_optimization", "auto_mixed_precision", "auto_mixed_precision_mkl",
        "auto_mixed_precision_onednn_bfloat16", "constant_folding", "debug_stripper",
        "dependency_optimization", "disable_meta_optimizer", "disable_model_pruning",
        "function_optimization", "implementation_selector", "layout_optimizer",
        "loop_optimization", "min_graph_nodes", "pin_to_host_optimization", "remapping",
        "scoped_allocator_optimization", "shape_optimization", "use_plugin_optimizers",
    }
)  # fmt: skip


def validate(options: Mapping[str, Any]) -> None:
    """Check our keys and values; leave all others to TensorFlow.

    Args:
      options: what was passed to `set_experimental_options`.

    Raises:
      ValueError: a key misspells one of ours; the message names the nearest right key.
      ValueError: a key is an option that was removed; the message says what to do without it.
      ValueError: the option does not take a value; the message names both.
      TypeError: a value has the wrong type; the message names both types.
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
                others = "".join(f" except {one}" for one in option.none_of)
                raise ValueError(
                    f"the option {key!r} of tf_fuse is a whole number of 0 or more{others}, got "
                    f"{value!r}"
                )
            if option.choices is not None and value not in option.choices:
                raise ValueError(
                    f"the option {key!r} of tf_fuse is one of {list(option.choices)}, got {value!r}"
                )
            if option.is_pattern:
                try:
                    re.compile(value)
                except re.error as error:
                    raise ValueError(
                        f"the option {key!r} of tf_fuse is a regular expression, got {value!r}: "
                        f"{error}"
                    ) from error
            if option.type is float and not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"the option {key!r} of tf_fuse is a positive number, got {value!r}"
                )
            continue
        if key in _STOCK_KEYS or not isinstance(key, str):
            continue
        meant = _meant(key)
        hint = REMOVED.get(key) or (meant and f"did you mean {meant!r}?")
        if hint:
            raise ValueError(
                f"unknown option {key!r}; {hint} The options of tf_fuse are: "
                + ", ".join(sorted(OPTIONS))
            )


def _meant(key: str) -> str | None:
    """Return the option that an unknown key misspells, or None if it is not meant for us."""
    folded = key.lower().replace("-", "_")
    nearest = difflib.get_close_matches(folded, [*OPTIONS, *sorted(_STOCK_KEYS)], 1, 0.7)
    if nearest:
        return nearest[0] if nearest[0] in OPTIONS else None
    words = set(folded.split("_"))
    return next((option for option, of_option in _WORDS.items() if words & of_option), None)


def add_to_config(config: Any, options: Mapping[str, Any]) -> None:
    """Write our options that are on into a ConfigProto; do nothing if all are off.

    Args:
      config: a `tf.compat.v1.ConfigProto`, changed in place. An earlier entry of ours is
        replaced.
      options: all experimental options, ours and TensorFlow's.
    """
    options = effective(options)
    rewrite = config.graph_options.rewrite_options
    kept = [entry for entry in rewrite.custom_optimizers if entry.name != OPTIMIZER_NAME]
    had_entry = len(kept) != len(rewrite.custom_optimizers)
    ours = {
        k: options[k]
        for k in sorted(OPTIONS)
        if OPTIONS[k].in_config and (options.get(k) or (k in options and OPTIONS[k].sends_false))
    }
    if had_entry:
        entries = [entry.SerializeToString() for entry in kept]
        del rewrite.custom_optimizers[:]
        for entry in entries:
            rewrite.custom_optimizers.add().ParseFromString(entry)
    # Tasks wait for each other in every step: threads that spin take the core that the one needs
    # for which they wait.
    if ours.get("do_fuse_recv"):
        config.experimental.disable_thread_spinning = True
    elif had_entry:
        config.experimental.ClearField("disable_thread_spinning")
    # The other types only configure an option that is on.
    if not any(value for key, value in ours.items() if OPTIONS[key].type is bool):
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


def effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the options that others switch on to those that a program sets itself."""
    switched_on = dict.fromkeys(SWITCHED_ON if options.get("tf_fuse") else (), True)
    found = {**switched_on, **options}
    on_servers = dict.fromkeys(ON_SERVERS if found.get("shard_weight_update") else (), True)
    return {**on_servers, **found}


def _options_of(context: Any) -> dict[str, Any]:
    return effective(experimental_options.stored(context))


def value_of(context: Any, key: str) -> Any:
    """Return the value of an option in a context; None if nothing sets it."""
    return _options_of(context).get(OPTIONS[key].key)


def is_on(context: Any, key: str) -> bool:
    """Return whether an option is on in a context."""
    return bool(value_of(context, key))


def reader(key: str) -> Callable[[Any], bool]:
    """Return a function that takes a context and returns whether an option is on in it."""
    return functools.partial(is_on, key=key)


def packs_handles(context: Any) -> bool:
    """Return whether a function that this context calls gets its handles packed."""
    options = _options_of(context)
    return bool(options.get("do_fuse_recv") and options.get("do_pack_handles", True))


def fuses_updates(context: Any) -> bool | None:
    """Return whether updates are fused; None if `shard_weight_update` decides."""
    is_set = value_of(context, "fuse_weight_update")
    return None if is_set is None else bool(is_set)


def graph_options(context: Any) -> bytes:
    """Return the `GraphOptions` that this thread calls functions with, serialized, without ours."""
    return _stock_graph_options(experimental_options.config_of_call(context))


@functools.lru_cache(maxsize=64)
def _stock_graph_options(serialized: bytes) -> bytes:
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto.FromString(serialized)
    add_to_config(config, {})
    found: bytes = config.graph_options.SerializeToString(deterministic=True)
    return found


def install(when_set: Callable[[Mapping[str, Any]], None]) -> None:
    """Extend TensorFlow's eager context, once per process.

    Args:
      when_set: is called with valid options before they are stored.

    Raises:
      ValueError, TypeError: an option of ours was set to a wrong value before; see `validate`.
    """

    def before_set(options: Mapping[str, Any]) -> None:
        validate(options)
        when_set(options)

    experimental_options.extend(OPTIONS, before_set, add_to_config)


def forget() -> None:
    """Take the options of this package out of TensorFlow's eager context."""
    experimental_options.forget(OPTIONS, add_to_config)
