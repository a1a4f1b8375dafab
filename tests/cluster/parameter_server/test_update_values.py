# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates on servers have stock values after many steps, whatever instructions there are.

It is long, so TF_FUSE_TEST_UPDATES=1 (`make updates`) runs it; `test_updates` is short. With
TF_FUSE_TEST_UPDATES=all, each optimizer also updates biases of every size from 1 to 4097.
"""

import hashlib
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cluster.all_passes import bias_sizes
from tests.fault import coordinator

_SECONDS = 890
_LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")
_ALL = os.environ.get("TF_FUSE_TEST_UPDATES") == "all"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not _LONG, reason="long: make updates"),
    pytest.mark.timeout(2 * _SECONDS + 10),
]

_LIBRARIES, _OPTIONS = ("keras", "tf_keras"), ("Adam amsgrad", "RMSprop centered")
_NAMES = [
    *(
        f"{library} {name}"
        for library in _LIBRARIES
        for name in (
            "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop",
            "SGD", "SGD momentum", "SGD nesterov", *_OPTIONS,
        )
    ),
    *(f"keras {name} clipnorm" for name in ("Adagrad", "Ftrl", "RMSprop", "SGD")),
    "keras SGD global_clipnorm", "tf_keras.legacy Adam",
    "tf.compat.v1.train Adam",
]  # fmt: skip
# What oneDNN, Eigen and the C library choose by the processor; each has a setting to use less.
_INEXACT = "tf_keras RMSprop clipnorm"
_INSTRUCTIONS = {
    "no oneDNN": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "SSE 4.1": {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512": {"TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "no FMA": {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL": "0",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
    },
}


def test_all_optimizers_are_tried():
    from tests.cluster.parameter_server import update_cases as server_update_cases

    assert sorted(_NAMES) == sorted(server_update_cases.makers())


@pytest.mark.parametrize("name", _NAMES)
def test_forty_steps(name):
    """Each size of a bias from 1 to 4097 is with one of the optimizers, or with all."""
    cases = coordinator.run(__file__, name, _NAMES.index(name), len(_NAMES), seconds=_SECONDS)
    for model in ("dlrm", "biases"):
        # Dense updates of these are one operation of TensorFlow already.
        stays = name.startswith("tf.compat") or (model, name) == ("biases", "tf_keras.legacy Adam")
        assert cases[model]["fused"] > 0 or stays, cases[model]
        assert cases[model]["losses"] == 40, cases[model]
        assert cases[model]["ulps"] == 0, cases[model]
        # So one trace does for both (`every_size`).
        assert cases[model]["same_trace"], cases[model]


@pytest.mark.skipif(not _ALL, reason="very long: make updates UPDATES=all")
@pytest.mark.timeout(4 * _SECONDS + 10)
@pytest.mark.parametrize("name", [*_NAMES, _INEXACT])
def test_every_size(name):
    """Each optimizer updates biases of every size from 1 to 4097."""
    case = coordinator.run(__file__, name, seconds=4 * _SECONDS)["every size"]
    assert (case["sizes"], case["still"], case["other"]) == (bias_sizes.LAST, 0, []), case
    if name == _INEXACT:
        assert case["apart"] < 1e-5, case
    else:
        assert case["differ"] == [], case
    # (Updates that are one operation already; TensorFlow 1 has products of two decays besides.)
    assert bool(case["programs"]) == (name != "tf_keras.legacy Adam"), case


@pytest.mark.parametrize("instructions", _INSTRUCTIONS)
def test_the_optimizer_whose_bits_change(instructions, monkeypatch):
    """After forty steps, relative to the largest element of each variable."""
    _limit(instructions, monkeypatch)
    cases = coordinator.run(__file__, _INEXACT, 0, 4097, seconds=_SECONDS)
    assert all(0 < cases[model]["apart"] < 1e-5 for model in ("dlrm", "biases")), cases


def _limit(instructions, monkeypatch):
    """Limit the instructions that TensorFlow chooses, if this processor has them."""
    if instructions == "AVX-512" and "avx512f" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has no AVX-512: it would run AVX2 again")
    for name, value in _INSTRUCTIONS[instructions].items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("instructions", _INSTRUCTIONS)
def test_instructions(instructions, monkeypatch):
    _limit(instructions, monkeypatch)
    script = Path(__file__).with_name("fused_update_cases.py")
    cases = {}
    for which in ("fast", "slow"):
        cases |= coordinator.run(str(script), which, seconds=_SECONDS)
    found = {n: c["ulps"] for n, c in cases.items() if isinstance(c, dict) and "ulps" in c}
    assert len(found) >= 2 * len(_NAMES)
    assert {name: ulps for name, ulps in found.items() if ulps} == {}


def _clipped():
    import tf_keras

    return tf_keras.optimizers.RMSprop(0.01, clipnorm=0.5)


def _main(name, index, count):
    """Trains each model twice; stock TensorFlow and tf_fuse trace it anew."""
    import numpy as np
    import tensorflow as tf

    from tests.cluster.all_passes import every_size
    from tests.cluster.all_passes import update_value_models as models
    from tests.cluster.parameter_server import update_cases as updates

    job, make, fuser = _start(name)
    sizes = sorted({*models.SIZES, *range(1 + index, 4098, count)})

    def trained(model, on):
        _switch(on)
        training = models.Training(job.strategy, model, make, sizes)
        losses = [job.call(training.step, models.numbers(i)) for i in range(models.STEPS)]
        variables = [*training.weights, *updates.variables_of(training.optimizer)]
        values = [tf.convert_to_tensor(v).numpy() for v in variables]
        return [*map(np.asarray, losses)], values, _trace(job, training)

    def compared(model):
        stock = trained(model, False)
        before = fuser().counts["updates_fused"]
        ours = trained(model, True)
        return {
            "losses": len({float(loss) for loss in stock[0]}),
            "ulps": updates.ulps([*ours[0], *ours[1]], [*stock[0], *stock[1]]),
            "apart": max(map(every_size.apart, ours[1], stock[1])),
            "same_trace": ours[2] == stock[2],
            "fused": fuser().counts["updates_fused"] - before,
        }

    coordinator.finish({model: lambda model=model: compared(model) for model in ("dlrm", "biases")})


def _every_size(name):
    """Trains vectors of all sizes with one trace."""
    from tests.cluster.all_passes import resized

    job, make, fuser = _start(name)

    def case():
        with job.strategy.scope():  # as `call` has it
            return resized.compared(
                job.strategy,
                make,
                lambda step, *arguments: job.call(step, arguments),
                _switch,
                lambda: fuser().variant().rewritten,
            )

    coordinator.finish({"every size": case})


def _start(name):
    """A job, what makes an optimizer, and what has the fused updates."""
    from tensorflow.python.eager import context as context_module

    from tests.cluster.parameter_server import update_cases as updates
    from tf_fuse.shard_update import interception

    job = coordinator.Job("off", 1, 2)
    context = context_module.context()
    make = _clipped if name == _INEXACT else updates.makers()[name]
    return job, make, lambda: interception.fuser_of(context)


def _switch(on):
    """Off, no option is on: graphs are stock TensorFlow's."""
    import tensorflow as tf

    options = {"fuse_weight_update": on, "do_fuse_recv": on, "fuse_grouping": "level"}
    tf.config.optimizer.set_experimental_options(options)


def _trace(job, training):
    """The operations of a step, each by what it computes, in no order.

    Keras numbers its second optimizer, whose variables are on other servers; tf_keras.legacy has
    operations for each server.
    """
    from tests.cluster.all_passes import update_value_models as models

    with job.strategy.scope():
        graph = training.step.get_concrete_function(*models.numbers(0)).graph
    prefix = f"{getattr(training.optimizer, 'name', None)}/"
    made = {}
    for one in graph.get_operations():
        name = re.sub(f"^{re.escape(prefix)}", "optimizer/", one.name) if not one.inputs else ""
        value = one.node_def.attr["value"].SerializeToString() if one.type == "Const" else name
        inputs = [(made[tensor.op.name], tensor.value_index) for tensor in one.inputs]
        text = repr((one.type, value, inputs))
        made[one.name] = hashlib.sha256(text.encode()).hexdigest()
    return sorted(made.values())


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _every_size(sys.argv[1])
    else:
        _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
