// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a graph's tensors, as TensorFlow's shape functions infer them.

#ifndef TF_FUSE_CC_PASSES_VIEW_STATIC_RANKS_H_
#define TF_FUSE_CC_PASSES_VIEW_STATIC_RANKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

class StaticRanks {
 public:
  // The graph must outlive it. Shapes are inferred at the first question; nodes
  // that are added afterwards have unknown ones.
  explicit StaticRanks(const tensorflow::Graph& graph) : graph_(graph) {}

  // Of an output; none if it is not known.
  std::optional<int> Of(const tensorflow::Node& node, int output);

  // The sizes of its axes, -1 for those that are not known; none if the rank is
  // not known.
  std::optional<std::vector<int64_t>> Sizes(const tensorflow::Node& node,
                                            int output);

 private:
  tensorflow::shape_inference::InferenceContext* ContextOf(
      const tensorflow::Node& node, int output);

  const tensorflow::Graph& graph_;
  std::unique_ptr<tensorflow::ShapeRefiner> refiner_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_STATIC_RANKS_H_
