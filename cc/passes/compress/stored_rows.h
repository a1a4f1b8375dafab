// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which rows lead to an assignment that stores them. Pure.

#ifndef TF_FUSE_CC_PASSES_COMPRESS_STORED_ROWS_H_
#define TF_FUSE_CC_PASSES_COMPRESS_STORED_ROWS_H_

#include <set>
#include <tuple>
#include <vector>

#include "passes/view/static_ranks.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Whether rows that a worker gets are stored: unchanged, moved or computed
// with.
//
// A loss depends on rows, and everything that a step updates depends on the
// loss. So what adds to a variable does not count, nor what a server computes
// with before it stores it (an optimizer), nor what a worker computes with and
// stores in variables that are not trained (moving averages, metrics), as
// scalars, or as an update of what the variable was.
class StoredRows {
 public:
  StoredRows(const tensorflow::Graph& graph, StaticRanks* ranks);

  bool LeadsTo(const tensorflow::Edge& edge) const;

 private:
  // A node that gets what was a row: whether it has been computed with, and
  // whether by the node's device, which is a server's.
  using State = std::tuple<const tensorflow::Node*, bool, bool>;

  void Add(const State& state);

  // Adds the states that lead to one.
  void GoBack(const State& state);

  // Whether an assignment stores what a worker computed from rows.
  bool IsStored(const tensorflow::Edge& edge);

  StaticRanks* const ranks_;
  std::set<State> leading_;
  std::vector<State> waiting_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_COMPRESS_STORED_ROWS_H_
