# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates on servers have stock values after many steps, whatever instructions there are.

It is long, so TF_FUSE_TEST_UPDATES=1 (`make updates`) runs it; `test_updates` is short. With
TF_FUSE_TEST_UPDATES=all, each optimizer updates biases of all sizes from 1 to 4097, which takes
half an hour for each: a part of the sizes at a time, since stock TensorFlow trains a model of
all of them for longer than that before its first step ends.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.fault import coordinator

_SECONDS = 890
_LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")
_PARTS = 16 if os.environ.get("TF_FUSE_TEST_UPDATES") == "all" else 0  # of all sizes
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
# What oneDNN, Eigen and the C library choose by the processor; each can be told to use less.
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


@pytest.mark.parametrize("part", range(_PARTS or 1))
@pytest.mark.parametrize("name", _NAMES)
def test_forty_steps(name, part):
    """Each size of a bias from 1 to 4097 is with one of the optimizers, or with all."""
    arguments = (name, part, _PARTS) if _PARTS else (name, _NAMES.index(name), len(_NAMES))
    cases = coordinator.run(__file__, *arguments, seconds=_SECONDS)
    for model in ("dlrm", "biases"):
        # Dense updates of these are one operation of TensorFlow already.
        stays = name.startswith("tf.compat") or (model, name) == ("biases", "tf_keras.legacy Adam")
        assert cases[model]["fused"] > 0 or stays, cases[model]
        assert cases[model]["losses"] == 40, cases[model]
        assert cases[model]["ulps"] == 0, cases[model]


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


def _apart(one, other):
    """How far two arrays are apart, relative to the largest element."""
    import numpy as np

    if one.dtype != np.float32:
        return 0.0
    largest = max(float(np.max(np.abs(other))), np.finfo(np.float32).tiny)
    return float(np.max(np.abs(one.astype(np.float64) - other))) / largest


def _main(name, index, count):
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    from tests.cluster.all_passes import update_value_models as models
    from tests.cluster.parameter_server import update_cases as updates
    from tf_fuse.shard_update import interception

    job = coordinator.Job("off", 1, 2)
    context = context_module.context()
    make = _clipped if name == _INEXACT else updates.makers()[name]
    sizes = sorted({*models.SIZES, *range(1 + index, 4098, count)})

    def trained(model, on):
        options = {"fuse_weight_update": on, "do_fuse_recv": True, "fuse_grouping": "level"}
        tf.config.optimizer.set_experimental_options(options)
        training = models.Training(job.strategy, model, make, sizes)
        losses = [job.call(training.step, models.numbers(i)) for i in range(models.STEPS)]
        variables = [*training.weights, *updates.variables_of(training.optimizer)]
        return [*map(np.asarray, losses)], [tf.convert_to_tensor(v).numpy() for v in variables]

    def compared(model):
        stock = trained(model, False)
        before = len(interception.fuser_of(context).decisions)
        ours = trained(model, True)
        found = interception.fuser_of(context).decisions[before:]
        return {
            "losses": len({float(loss) for loss in stock[0]}),
            "ulps": updates.ulps([*ours[0], *ours[1]], [*stock[0], *stock[1]]),
            "apart": max(map(_apart, ours[1], stock[1])),
            "fused": sum(len(one.outline.clusters) for one in found),
        }

    coordinator.finish({model: lambda model=model: compared(model) for model in ("dlrm", "biases")})


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
