// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/static_ranks.h"

#include <vector>

#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/version.h"

namespace tf_fuse {

using tensorflow::Node;

using tensorflow::shape_inference::InferenceContext;

InferenceContext* StaticRanks::ContextOf(const Node& node, int output) {
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
  InferenceContext* context = refiner_->GetContext(&node);
  if (context == nullptr || output >= context->num_outputs() ||
      !context->RankKnown(context->output(output))) {
    return nullptr;
  }
  return context;
}

std::optional<int> StaticRanks::Of(const Node& node, int output) {
  InferenceContext* context = ContextOf(node, output);
  if (context == nullptr) return {};
  return context->Rank(context->output(output));
}

std::optional<std::vector<int64_t>> StaticRanks::Sizes(const Node& node,
                                                       int output) {
  InferenceContext* context = ContextOf(node, output);
  if (context == nullptr) return {};
  std::vector<int64_t> sizes;
  const auto shape = context->output(output);
  for (int axis = 0; axis < context->Rank(shape); ++axis) {
    sizes.push_back(InferenceContext::Value(context->Dim(shape, axis)));
  }
  return sizes;
}

}  // namespace tf_fuse
