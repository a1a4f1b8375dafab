# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs with one worker give what they give in one process, to the last bit."""

import contextlib
import functools
import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_NAMES = [
    "several_outputs",
    "metrics_with_state",
    "losses_of_layers",
    "state_of_layers",
    "reset_metrics",
    "evaluation_in_epoch",
    "stops",
    "compiled_again",
    "averages",
    "weights_of_classes",
    "backup_of_repeated_data",
]


# (`test_fit_functions` resets metrics, too.)
_SLOW = ["reset_metrics"]


@pytest.fixture(scope="module")
def runs():
    return {
        mode: coordinator.Cases(__file__, mode, slow=_SLOW, seconds=400)
        for mode in ("one process", "servers")
    }


@pytest.mark.parametrize("name", slow_but(_NAMES, lambda name: name not in _SLOW))
def test_values_are_those_of_one_process(runs, name):
    expected = runs["one process"][name]
    assert expected is not None and "raised" not in expected, expected
    assert runs["servers"][name] == expected


def _main(mode):
    import keras
    import tensorflow as tf

    from tests.cluster.keras import odd_programs

    keras.config.disable_interactive_logging()
    scope = contextlib.nullcontext
    if mode == "servers":
        job = coordinator.Job("off", 1, 2)
        import tf_fuse.keras  # noqa: F401  (makes Keras run its steps on workers)

        tf.config.optimizer.set_experimental_options({"tf_fuse": True})
        scope = job.strategy.scope

    def run(program):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        return coordinator.exact(program(scope))

    assert [one.__name__ for one in odd_programs.PROGRAMS] == _NAMES
    cases = {one.__name__: functools.partial(run, one) for one in odd_programs.PROGRAMS}
    coordinator.finish(cases, _SLOW)


if __name__ == "__main__":
    _main(*sys.argv[1:])
