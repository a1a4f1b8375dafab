# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make all replicas plan with the figures that the first replica measured.

The first replica sends its figures with the sign that the option is on (`plan_consensus.py`), which
the others wait for anyway before a first step. A replica whose environment pins figures takes
those, and the consensus compares what each has taken.
"""

from __future__ import annotations

from tf_fuse.shard_update.cost_figures import UpdateCosts, pinned, told
from tf_fuse.shard_update.cost_model import update_measurement
from tf_fuse.shard_update.runtime.plan_consensus import PlanConsensus
from tf_fuse.sharded_variable.peers import Peers


class CostConsensus:
    """The figures that a group of replicas plans with.

    Attributes:
      word: what this process sends to the others: its figures, or its error.
    """

    def __init__(self, peers: Peers):
        """Measures, if that is for this process to do."""
        self._first = peers.devices[0].partition("/device:")[0]
        own = peers.devices[peers.own[0]].partition("/device:")[0]
        self._costs: UpdateCosts | None = None
        self._wrong = ""
        try:
            self._costs = pinned(own)
        except ValueError as error:
            self._wrong = str(error)
        if self._costs is None and not self._wrong and peers.own[0] == 0:
            self._costs = update_measurement.costs_here(peers.beside, own)
        # (Without figures, the others get the error of this process.)
        self.word = self._costs.word() if self._costs is not None else f"\n{self._wrong}"

    def costs(self, consensus: PlanConsensus) -> UpdateCosts:
        """Return the figures; wait for the first replica, unless this one has some.

        Args:
          consensus: with other replicas, which get an error too if this one does.

        Raises:
          tf.errors.InvalidArgumentError: the environment has some that cannot be used.
          tf.errors.FailedPreconditionError: the first replica has none, or the option is off there,
            as far as can be seen.
          tf.errors.OpError: the first replica has died.
        """
        from tensorflow.python.framework import errors

        try:
            return self._found(consensus)
        except errors.OpError as error:
            consensus.refuse(error.message)
            raise

    def _found(self, consensus: PlanConsensus) -> UpdateCosts:
        from tensorflow.python.framework import errors

        if self._wrong:
            raise errors.InvalidArgumentError(None, None, self._wrong)
        if self._costs is None:
            word = ""
            try:
                word = consensus.first_word()
                self._costs = told(word)
            except ValueError as error:
                why = word.partition("\n")[2] or (
                    f"it says {word[:200]!r}; perhaps it runs another version of tf_fuse ({error})"
                )
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"tf_fuse: {self._first} does not say what an update of weights costs, so it "
                    f"is not known what to shard: {why}",
                ) from None
        return self._costs
