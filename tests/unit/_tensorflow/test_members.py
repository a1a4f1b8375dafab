# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tf_fuse replaces in TensorFlow and Keras: the members, their shapes, and the way back."""

import json
import sys
from pathlib import Path

import pytest

from tests import scripted
from tf_fuse import _native

_HERE = Path(__file__).resolve().parent


@pytest.fixture
def run(isolated_env):
    def run(what, *arguments):
        path = {"PYTHONPATH": str(scripted.ROOT)}
        command = [sys.executable, str(_HERE / "private_members.py"), what]
        return scripted.result_of([*command, *map(json.dumps, arguments)], isolated_env | path, 200)

    return run


# Declared members that the installed versions do not need to replace, and why.
_NOT_REPLACED = {
    "keras.src.optimizers.adamw.AdamW.build": "it inherits the one of Adam, which is replaced",
}


def test_members_have_the_shape_that_is_relied_on(run):
    assert run("shapes") == []


def test_uninstall_puts_every_original_back(run):
    found = run("uninstall")
    assert set(found["imported"]) <= set(found["at_import"])
    assert set(found["used"]) <= set(found["registry"])
    assert found["registry"] == [one for one in found["declared"] if one not in _NOT_REPLACED]
    assert _NOT_REPLACED.keys() <= set(found["declared"])
    assert found["problems"] == []
    assert found["is_replaced"] and all(found["is_replaced"])
    assert found["left"] == found["after"] == []
    assert found["trained"] == 0.5
    assert found["entries"] == [2, 0]
    # Until an option is set, only what is replaced at import is.
    assert found["replaced at import"] == found["at_import"]
    assert found["replaced without options"] == found["at_import"]


# Members that look different, and the features that need them.
_BROKEN = {
    "tensorflow.python.eager.context:Context.has_function": {
        "handle packing", "local cluster", "weight updates",
    },
    "tensorflow.python.distribute.parameter_server_strategy_v2:"
    "ParameterServerStrategyV2Extended._create_variable": {"placement"},
    "tensorflow.python.training.saving.saveable_object_util:TrackableSaveable.restore": {
        "variables in pieces",
    },
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._clip_gradients": {
        "Keras optimizers on pieces",
    },
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._make_function": {
        "Keras fit", "Keras fit in several processes",
    },
    "tensorflow.python.ops.gen_array_ops:gather_v2": {"gathers on servers"},
    "tensorflow.python.ops.resource_variable_ops:variable_accessed": {"layout execution"},
}  # fmt: skip
_OF_OPTIONS = "tensorflow.python.eager.context:Context.get_optimizer_experimental_options"
_MAT_MUL = "tensorflow.python.ops.gen_math_ops.mat_mul"


def test_a_member_with_another_shape_switches_off_its_feature_alone(run):
    found = run("broken", list(_BROKEN))
    off = set().union(*_BROKEN.values())
    assert {feature for feature, works in found["works"].items() if not works} == off
    assert found["kept"] == list(_BROKEN)
    replaced = set(found["replaced"])
    assert _MAT_MUL in replaced and f"{_OF_OPTIONS.replace(':', '.')}" in replaced
    away = (
        "TFOptimizer",
        "GradientTape",
        "call_function",
        "Extended",
    )
    assert not [one for one in replaced if any(name in one for name in away)]
    assert len(found["log"]) == len(off)
    assert found["doctor"].startswith("False ")
    assert [member.replace(":", ".") in found["doctor"] for member in _BROKEN] == [True] * 7
    (restore,) = [line for line in found["log"] if "TrackableSaveable" in line]
    (version, *_) = _native.tensorflow_versions().values()
    assert restore.startswith(
        "tensorflow.python.training.saving.saveable_object_util.TrackableSaveable.restore of "
        f"TensorFlow {version}"
    )
    assert (
        " takes (unexpected), not (self, restored_tensors, restored_shapes): variables in pieces "
        "are used as TensorFlow does. TensorFlow stays unchanged there" in restore
    )


def test_without_options_nothing_of_them_is_replaced(run):
    found = run("broken", [_OF_OPTIONS])
    assert [feature for feature, works in found["works"].items() if not works] == ["options"]
    assert found["kept"] == [_OF_OPTIONS]
    assert not [one for one in found["replaced"] if "options" in one or "gather_v2" in one]
