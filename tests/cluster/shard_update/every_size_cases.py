# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models under MultiWorkerMirroredStrategy, with `shard_weight_update` off and then on."""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tests.cluster.all_passes import every_size, resized, update_value_models
from tests.cluster.shard_update import matrix_cases as matrix


class ShardUpdateEverySizeCases:
    """Cases of `collectives.cases.Member`."""

    rank: int

    def trained_twice(
        self,
        library: str,
        name: str,
        options: Mapping[str, Any],
        sizes: Sequence[int] = (),
        exact: bool = False,
    ) -> dict[str, Any]:
        """Trains a model with whole updates, and again with sharded ones.

        Args:
          library: as of `ShardUpdateMatrixCases.optimizer`.
          name: likewise.
          options: likewise.
          sizes: of biases that are the model; none for DLRM.
          exact: whether updates stay whole whose bits may change.

        Returns:
          As `every_size.compared`, and what was decided.
        """
        gc.collect()  # what the last one left
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        make_optimizer = _maker(library, name, options)
        before = len(matrix.decisions())
        model = "pieces" if sizes else "dlrm"

        def make() -> Any:
            return update_value_models.Training(strategy, model, make_optimizer, sizes)

        def call(step: Any, x: Any, y: Any) -> Any:
            # (Each replica has numbers of its own.)
            return strategy.experimental_local_results(step(x + float(self.rank), y))[0]

        def switch(on: bool) -> None:
            matrix.switch(
                shard_weight_update=on,
                fuse_weight_update=on,
                shard_weight_update_exact=on and exact,
            )

        found = every_size.compared(make, call, switch)
        found["decided"] = [matrix.told(one) for one in matrix.decisions()[before:]]
        return found

    def every_size_alone(
        self, library: str, name: str, options: Mapping[str, Any], first: int | None
    ) -> dict[str, Any]:
        """Trains vectors of every size in this process.

        Args:
          library: as of `ShardUpdateMatrixCases.optimizer`.
          name: likewise.
          options: likewise.
          first: see `resized.compared`.

        Returns:
          As `resized.compared`.
        """
        gc.collect()

        def call(step: Any, *args: Any) -> Any:
            return step(*args)

        def switch(on: bool) -> None:
            matrix.switch(shard_weight_update=False, fuse_weight_update=on)

        strategy, make = tf.distribute.get_strategy(), _maker(library, name, options)
        return resized.compared(strategy, make, call, switch, _rewritten, first)


def _maker(library: str, name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    keras = importlib.import_module("tf_keras" if library.startswith("tf_keras") else "keras")
    return functools.partial(matrix.optimizer_of, keras, library, name, options)


def _rewritten() -> dict[bytes, bytes | None]:
    """The names of rewritten functions, by those of the functions."""
    from tf_fuse.shard_update import interception

    found: dict[bytes, bytes | None] = (
        interception.fuser_of(context_module.context()).variant().rewritten
    )
    return found
