# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures that all replicas plan with: those of the first one.

It measures, and tells the others with the sign that the option is on (`agreement.py`), for which
they wait anyway before a first step. A replica whose environment pins figures takes those, and the
agreement compares what each has taken.
"""

from __future__ import annotations

from tf_fuse.shard_update import measure
from tf_fuse.shard_update.agreement import Agreement
from tf_fuse.shard_update.cluster import Cluster
from tf_fuse.shard_update.costs import Costs, pinned, told


class Calibration:
    """The figures of a cluster.

    Attributes:
      word: what others are told.
    """

    def __init__(self, cluster: Cluster):
        """Measures, if that is for this process to do."""
        self._first = cluster.devices[0].partition("/device:")[0]
        own = cluster.devices[cluster.own[0]].partition("/device:")[0]
        self._costs: Costs | None = None
        self._wrong = ""
        try:
            self._costs = pinned(own)
        except ValueError as error:
            self._wrong = str(error)
        if self._costs is None and not self._wrong and cluster.own[0] == 0:
            self._costs = measure.costs_here(cluster.beside, own)
        # (Without figures, others are told what is wrong here.)
        self.word = self._costs.word() if self._costs is not None else f"\n{self._wrong}"

    def costs(self, agreement: Agreement) -> Costs:
        """The figures; waits for the first replica, unless this one has some.

        Args:
          agreement: with other replicas, which get an error too if this one does.

        Raises:
          tf.errors.InvalidArgumentError: the environment has some that cannot be used.
          tf.errors.FailedPreconditionError: the first replica has none, or the option is off there,
            as far as can be seen.
          tf.errors.OpError: the first replica has died.
        """
        from tensorflow.python.framework import errors

        try:
            return self._found(agreement)
        except errors.OpError as error:
            agreement.refuse(error.message)
            raise

    def _found(self, agreement: Agreement) -> Costs:
        from tensorflow.python.framework import errors

        if self._wrong:
            raise errors.InvalidArgumentError(None, None, self._wrong)
        if self._costs is None:
            word = ""
            try:
                word = agreement.first_word()
                self._costs = told(word)
            except ValueError as error:
                why = word.partition("\n")[2] or (
                    f"it says {word[:200]!r}; perhaps it runs another version of tf_fuse ({error})"
                )
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"tf_fuse: {self._first} does not say what an update of weights costs, so it "
                    f"is not known what to cut: {why}",
                ) from None
        return self._costs
