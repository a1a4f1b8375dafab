# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `collective_ranks.py` do: each public method of `Member` is a case.

Tensors are made in the ranks from seeds, and results go back as hashes of all bits.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import tensorflow as tf
from cluster.collective_fault_cases import FaultCases
from cluster.collective_library_cases import LibraryCases
from cluster.collective_member import usage
from cluster.collective_op_cases import OpCases
from cluster.collective_ranks import Error
from cluster.collective_strategy_cases import StrategyCases
from cluster.shard_update_cases import ShardUpdateCases
from cluster.shard_update_gather_cases import ShardUpdateGatherCases
from cluster.shard_update_matrix_cases import ShardUpdateMatrixCases
from cluster.shard_update_mirrored import ShardUpdateMirroredCases
from cluster.shard_update_option_cases import ShardUpdateOptionCases
from cluster.shard_update_reader_cases import ShardUpdateReaderCases


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
    ShardUpdateMatrixCases,
    ShardUpdateMirroredCases,
    ShardUpdateOptionCases,
    ShardUpdateReaderCases,
    ShardUpdateGatherCases,
):
    """A rank: its server, and its cases."""

    def usage(self) -> dict[str, int]:
        """Memory, threads and descriptors of this process."""
        return usage()

    def skip_keys(self) -> None:
        """Counts a key, where other ranks made a call that this one did not."""
        self._key()

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
