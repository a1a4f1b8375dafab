# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs that look at the members of TensorFlow and Keras that tf_fuse replaces; one result."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
from types import FunctionType, ModuleType

import numpy as np
import tensorflow as tf

from tests import scripted

_ALL = {
    "do_fuse_recv": True,
    "shard_weight_update": True,
    "fuse_weight_update": True,
    "split_matmuls": True,
    "steps_in_flight": 2,
    "compress": "bfloat16",
}


def _snapshot() -> dict[str, object]:
    """Functions, properties, numbers and other members of TensorFlow and Keras, by name."""
    found: dict[str, object] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("tensorflow", "keras", "tf_keras"):
            continue
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, (FunctionType, frozenset, int, np.integer)):
                found[f"{module_name}.{name}"] = value
            if isinstance(value, type) and value.__module__ == module_name:
                for member, one in list(vars(value).items()):
                    # (Python itself sets the others, as `__abstractmethods__` and caches.)
                    if isinstance(one, (FunctionType, property)) or hasattr(one, "__get__"):
                        found[f"{module_name}.{value.__qualname__}.{member}"] = one
    return found


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names that both have with other values; and those that are new in classes that both have."""
    owners = {name.rpartition(".")[0] for name in before}
    return sorted(
        name
        for name, value in after.items()
        if (before[name] is not value if name in before else name.rpartition(".")[0] in owners)
    )


def _use_everything() -> None:
    """Make each feature replace its members."""
    import keras
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    from tf_fuse.parameter_server.partitioning import (
        checkpoint_slices,
        gradient_tape,
        keras_checkpoints,
        keras_optimizers,
        restore_in_parts,
    )
    from tf_fuse.sharded_variable import handle_access

    importlib.import_module("tf_fuse.keras")
    tf.config.optimizer.set_experimental_options(_ALL)
    sharded = ShardedVariable([tf.Variable([[1.0]]), tf.Variable([[2.0]])])
    checkpoint_slices.save_by_pieces(sharded)
    gradient_tape.mark(sharded)
    keras_optimizers.install()
    keras_checkpoints.remember(sharded, sharded.variables)
    restore_in_parts.install()
    handle_access.watch_handles()
    keras.optimizers.SGD(0.1).build([tf.Variable(1.0)])


def shapes() -> object:
    """Members that have another shape than is relied on."""
    import keras  # noqa: F401

    import tf_fuse  # noqa: F401
    from tf_fuse._tensorflow import features

    return [f"{member} {problem}" for member, problem in features.checks()]


def uninstall() -> object:
    """What is replaced: by import, with all options on, and after `uninstall`; what is declared."""
    import keras  # noqa: F401
    import tensorflow.python.checkpoint.checkpoint
    import tensorflow.python.data.ops.structured_function
    import tensorflow.python.distribute.parameter_server_strategy_v2
    import tensorflow.python.training.saving.saveable_object_util  # noqa: F401

    # Looking at its members imports it, and it tells TensorFlow about itself.
    with contextlib.suppress(ImportError):
        import tf_keras  # noqa: F401

    before = _snapshot()
    import tf_fuse
    from tf_fuse._tensorflow import catalogue, features, members, monkey_patch

    imported = _changed(before, _snapshot())
    at_import = _registry()
    tf.config.optimizer.get_experimental_options()
    _trained()
    before_options = _registry()
    _use_everything()
    used = _changed(before, _snapshot())
    found, registry = monkey_patch.replacements(), _registry()
    problems = [f"{member} {problem}" for member, problem in features.checks()]
    is_replaced = [not one.is_undone() for one in found]
    _trained()
    config_before = _our_entries()
    tf_fuse.uninstall()
    tf_fuse.uninstall()
    tf.config.optimizer.set_experimental_options(_ALL)
    return {
        "imported": imported,
        "replaced at import": at_import,
        "replaced without options": before_options,
        "used": used,
        "registry": registry,
        "is_replaced": is_replaced,
        "problems": problems,
        "left": [str(one.member) for one in found if not one.is_undone()],
        "after": _changed(before, _snapshot()),
        "declared": sorted(
            {
                str(member)
                for member in catalogue.MEMBERS
                if member.when in (members.AT_IMPORT, members.AT_FIRST_USE)
            }
        ),
        "at_import": sorted(str(m) for m in catalogue.MEMBERS if m.when == members.AT_IMPORT),
        "trained": _trained(),
        "entries": [config_before, _our_entries()],
    }


def _registry() -> list[str]:
    """The members that are replaced."""
    from tf_fuse._tensorflow import monkey_patch

    return sorted(str(one.member) for one in monkey_patch.replacements())


def _our_entries() -> int:
    """How often our options are in what the context and this thread's calls hand on."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    calls = config_pb2.ConfigProto.FromString(
        context.context().function_call_options.config_proto_serialized
    )
    configs = (context.context().config, calls)
    entries = [e for c in configs for e in c.graph_options.rewrite_options.custom_optimizers]
    return sum(entry.name == "tf_fuse" for entry in entries)


def _trained() -> float:
    variable = tf.Variable(1.0)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = variable * variable
        variable.assign_sub(0.25 * tape.gradient(loss, variable))
        return variable.read_value()

    return float(step())


def broken(names: list[str]) -> object:
    """Members that look different; which are what they were then, and what the log says."""
    import keras  # noqa: F401

    def other(unexpected):
        return unexpected

    owners = []
    for text in names:
        module, _, path = text.partition(":")
        owner = importlib.import_module(module)
        *classes, name = path.split(".")
        for one in classes:
            owner = getattr(owner, one)
        setattr(owner, name, other)
        owners.append((text, owner, name))
    written = io.StringIO()
    logger = logging.getLogger("tf_fuse")
    logger.addHandler(logging.StreamHandler(written))
    import tf_fuse  # noqa: F401

    try:
        _use_everything()
    except TypeError as error:  # of `other`
        written.write(f"{error}\n")
    from tf_fuse._tensorflow import features, monkey_patch
    from tf_fuse._tensorflow.feature_names import WITHOUT

    works = {feature: features.works(feature) for feature in WITHOUT}
    lines = written.getvalue().splitlines()
    return {
        "log": [line for line in lines if "doctor" in line],
        "kept": [text for text, owner, name in owners if vars(owner)[name] is other],
        "works": works,
        "doctor": _doctor(),
        "replaced": sorted({str(one.member) for one in monkey_patch.replacements()}),
    }


def _doctor() -> str:
    """What the doctor says of the members."""
    from tf_fuse.cli import doctor

    check = next(one for one in doctor.CHECKS if one.name == "internals")
    result = doctor._run_one(check, [])
    return f"{result['ok']} {result['detail']}"


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    scripted.give(globals()[what](*map(json.loads, arguments)))
