// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/static_ranks.h"

#include <vector>

#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/version.h"

namespace tf_fuse {

using tensorflow::Node;

std::optional<int> StaticRanks::Of(const Node& node, int output) {
  if (refiner_ == nullptr) {
    refiner_ = std::make_unique<tensorflow::ShapeRefiner>(TF_GRAPH_DEF_VERSION,
                                                          graph_.op_registry());
    refiner_->set_require_shape_inference_fns(false);
    refiner_->set_function_library_for_shape_inference(&graph_.flib_def());
    std::vector<Node*> order;
    tensorflow::GetReversePostOrder(graph_, &order);
    for (const Node* one : order) {
      // A shape function that fails leaves its outputs unknown.
      (void)refiner_->AddNode(one);
    }
  }
  auto* context = refiner_->GetContext(&node);
  if (context == nullptr || output >= context->num_outputs()) return {};
  const auto shape = context->output(output);
  if (!context->RankKnown(shape)) return {};
  return context->Rank(shape);
}

}  // namespace tf_fuse
