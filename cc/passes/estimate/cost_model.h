// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Estimates what calls, bytes and operations cost, and decides by that which
// receives are worth a call of their own. The standard library only: no graph.

#ifndef TF_FUSE_CC_PASSES_ESTIMATE_COST_MODEL_H_
#define TF_FUSE_CC_PASSES_ESTIMATE_COST_MODEL_H_

#include <cstddef>
#include <vector>

namespace tf_fuse {

// Times in microseconds. Options set the first two. Nothing is measured: the
// same graph has the same groups in every process. The others only order
// events, and need not be right within a factor of two.
struct CostModel {
  // By how much each call delays those after it: its work on both sides.
  double rpc_us = 60;
  double bytes_per_us = 1000;  // 1 GB/s.
  double op_us = 2;
  double flops_per_us = 20000;
  double op_bytes_per_us = 4000;
  // Of a tensor whose shape is not known.
  double unknown_bytes = 4096;
};

// A receive that may share a call with others.
struct Arrival {
  double bytes = 0;
  // When its sender has the tensor, if nothing is ever waited for but inputs.
  double ready_us = 0;
  // The longest path from its arrival to the end of the step.
  double tail_us = 0;
};

// When the step ends if the parts are called one after the other, none before
// all of it is ready, and of those that are ready the one with the longest tail
// first: the largest (arrival + tail). Parts are lists of indices into
// `arrivals`.
double PredictEnd(const std::vector<Arrival>& arrivals,
                  const std::vector<std::vector<size_t>>& parts,
                  const CostModel& model);

// Splits the receives into parts so that PredictEnd() is small. A part more has
// to end the step earlier by what its call costs. Parts and their members are
// in increasing order of index. Parts are runs of the order in which single
// calls would be answered; of these splits it is the best, up to differences of
// time that no call would pay for.
std::vector<std::vector<size_t>> SplitByCost(
    const std::vector<Arrival>& arrivals, const CostModel& model);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_ESTIMATE_COST_MODEL_H_
