# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `ranks.py` do: each public method of `Member` is a case.

Tensors are made in the ranks from seeds, and results go back as hashes of all bits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tests.cluster.collectives.fault_cases import FaultCases
from tests.cluster.collectives.library_cases import LibraryCases
from tests.cluster.collectives.member import usage
from tests.cluster.collectives.op_cases import OpCases
from tests.cluster.collectives.ranks import Error
from tests.cluster.collectives.strategy_cases import StrategyCases
from tests.cluster.keras.fit_cases import KerasFitCases
from tests.cluster.shard_update.cases import ShardUpdateCases
from tests.cluster.shard_update.every_size_cases import ShardUpdateEverySizeCases
from tests.cluster.shard_update.gather_cases import ShardUpdateGatherCases
from tests.cluster.shard_update.matrix_cases import ShardUpdateMatrixCases
from tests.cluster.shard_update.mirrored_cases import ShardUpdateMirroredCases
from tests.cluster.shard_update.option_cases import ShardUpdateOptionCases
from tests.cluster.shard_update.reader_cases import ShardUpdateReaderCases


def outcome(member: Member, case: str, args: dict[str, Any]) -> Any:
    """What a case returns, or the `Error` that it raised."""
    try:
        return getattr(member, case)(**args)
    except tf.errors.OpError as e:
        return Error(type(e).__name__, e.error_code, str(e))
    except Exception as e:
        import traceback

        traceback.print_exc()
        return Error(type(e).__name__, None, str(e))


class Member(
    OpCases,
    LibraryCases,
    StrategyCases,
    FaultCases,
    ShardUpdateCases,
    ShardUpdateEverySizeCases,
    ShardUpdateMatrixCases,
    ShardUpdateMirroredCases,
    ShardUpdateOptionCases,
    ShardUpdateReaderCases,
    ShardUpdateGatherCases,
    KerasFitCases,
):
    """A rank: its server, and its cases."""

    def usage(self) -> dict[str, int]:
        """Memory, threads and descriptors of this process."""
        return usage()

    def skip_keys(self) -> None:
        """Counts a key, where other ranks made a call that this one did not."""
        self._key()

    def renew(self, tasks: int | None = None, from_one: bool = False) -> None:
        """Enables collectives once more.

        Args:
          tasks: how many of the addresses the cluster has then; None for all of them.
          from_one: whether keys are counted from 1 again, as those of another strategy are.
        """
        self._start_server(tasks)
        if from_one:
            self._instance = 0

    def begin_anew(self, addresses: Sequence[str], how: str) -> None:
        """Makes another eager context, with a server of its own at another address.

        Args:
          addresses: of all ranks, then.
          how: "reset", TensorFlow's own function, which drops the old context; or "second", beside
            the old one, whose server goes on.
        """
        from tensorflow.python.eager import context

        self._contexts.append((context.context(), self.spec["addresses"], self._instance))
        if how == "reset":
            self._contexts.clear()
            context._reset_context()
        else:
            context._set_context(context.Context())
        self.spec = self.spec | {"addresses": list(addresses)}
        self.renew(from_one=True)

    def go_back(self) -> None:
        """Takes the context again that was there before `begin_anew(how="second")`."""
        from tensorflow.python.eager import context

        one, addresses, self._instance = self._contexts.pop()
        context._set_context(one)
        self.spec = self.spec | {"addresses": addresses}

    def wait_for_requests(self) -> None:
        """Returns when requests of other tasks wait here."""
        deadline = time.monotonic() + 20
        while not self.counters()["pending_requests"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def counters(self) -> dict[str, int]:
        """The counters of the collectives, and gauges; empty without the plugin."""
        if not self.ours:
            return {}
        import tf_fuse

        return {k: v for k, v in tf_fuse.metrics().items() if isinstance(v, int)}

    def wait_for_gauges(self) -> dict[str, int]:
        """The counters, once nothing is lent or asked for, or 20 seconds have passed."""
        deadline = time.monotonic() + 20
        gauges = ("lent_chunks", "pending_requests")
        while any((now := self.counters())[k] for k in gauges) and time.monotonic() < deadline:
            time.sleep(0.05)
        return now

    def plugin_loaded(self) -> bool:
        """Whether tf_fuse is in this process."""
        return "tf_fuse" in sys.modules
