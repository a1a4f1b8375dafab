// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The definitions of TfFuse>ReduceScatter, TfFuse>AllGather, TfFuse>AllReduce
// and TfFuse>Permute, and the shapes of what they return.

#include "kernels/input_indices.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_fuse {

using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

absl::Status CheckParameterShapes(InferenceContext* c) {
  ShapeHandle unused;
  absl::Status status;
  for (int i = c->num_inputs() - kParameters; i < c->num_inputs(); ++i) {
    status.Update(c->WithRank(c->input(i), 0, &unused));
  }
  return status;
}

// How long the shard of a rank is depends on the rank, but for a group of one.
absl::Status InferShards(InferenceContext* c) {
  absl::Status status = CheckParameterShapes(c);
  const Tensor* size =
      c->input_tensor(c->num_inputs() - kParameters + kGroupSize);
  for (int i = 0; i < c->num_outputs(); ++i) {
    const auto elements = c->NumElements(c->input(i));
    const bool whole = size != nullptr && size->NumElements() == 1 &&
                       size->flat<int32_t>()(0) == 1;
    const bool known =
        c->ValueKnown(elements) && (whole || c->Value(elements) == 0);
    c->set_output(i, c->Vector(known ? c->Value(elements)
                                     : InferenceContext::kUnknownDim));
  }
  return status;
}

absl::Status InferReduced(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return CheckParameterShapes(c);
}

absl::Status InferGathered(InferenceContext* c) {
  absl::Status status = CheckParameterShapes(c);
  const int tensors = c->num_outputs();
  for (int i = 0; i < tensors; ++i) {
    ShapeHandle shape;
    status.Update(c->WithRank(c->input(i), 1, &shape));
    status.Update(c->MakeShapeFromShapeTensor(tensors + i, &shape));
    if (!status.ok()) return status;
    c->set_output(i, shape);
  }
  return status;
}

}  // namespace

// The inputs of all of them after their tensors.
#define TF_FUSE_MEMBER_OF_A_GROUP                               \
  Input("group_size: int32")                                    \
      .Input("group_key: int32")                                \
      .Input("instance_key: int32")                             \
      .Attr("T: {bfloat16, half, float, double, int32, int64}") \
      .Attr("N: int >= 1")                                      \
      .Attr("packed: bool = false")                             \
      .Attr("rank: int >= -1 = -1")                             \
      .Attr("tag: string = ''")                                 \
      .Attr("timeout_seconds: float = 0")                       \
      .SetIsStateful()                                          \
      .SetIsDistributedCommunication()

REGISTER_OP("TfFuse>ReduceScatter")
    .Input("inputs: N * T")
    .Output("shards: N * T")
    .Attr("groups: int >= 1 = 1")
    .Attr("bounds: list(int) = []")
    .TF_FUSE_MEMBER_OF_A_GROUP.SetShapeFn(InferShards)
    .Doc(R"doc(
Sums each tensor over the members of a group, and gives each member its shard.

The shard of member r is chunk r of TensorFlow's ring, summed in its order: so
TfFuse>AllGather of the shards has the bits of CollectiveReduceV2.

inputs: tensors of any shape, equal in all members.
shards: vectors; of a tensor with few elements the last members' are empty.
packed: whether all tensors are cut as one, in which they follow each other; a
  member's shard of a tensor is then what its chunk has of it.
groups: a divisor of group_size. With more than one, the members of each of so
  many groups of consecutive ranks get the whole sum together; each chunk is
  still summed once, in the ring's order, and handed to those that hold it too.
bounds: if there are any, they say what is whose: of each tensor in turn, where
  the members' shards begin, by rank, and where the last one ends.
rank: what the graph takes this member's rank to be; -1 if it does not matter.
tag: tells collectives of the same instance key apart.
timeout_seconds: until the operation fails; 0 waits for ever.
)doc");

REGISTER_OP("TfFuse>AllReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .TF_FUSE_MEMBER_OF_A_GROUP.SetShapeFn(InferReduced)
    .Doc(R"doc(
Sums each tensor over the members of a group, to the bits of CollectiveReduceV2.

inputs: tensors of any shape, equal in all members.
outputs: of the inputs' shapes.
packed: whether the order of additions is that of all tensors as one.
rank: what the graph takes this member's rank to be; -1 if it does not matter.
tag: tells collectives of the same instance key apart.
timeout_seconds: until the operation fails; 0 waits for ever.
)doc");

REGISTER_OP("TfFuse>AllGather")
    .Input("shards: N * T")
    .Input("shapes: N * int64")
    .Output("outputs: N * T")
    .Attr("groups: int >= 1 = 1")
    .Attr("bounds: list(int) = []")
    .TF_FUSE_MEMBER_OF_A_GROUP.SetShapeFn(InferGathered)
    .Doc(R"doc(
Puts the shards of all members of a group together, as TfFuse>ReduceScatter cuts
them.

shards: vectors, this member's.
shapes: of the whole tensors, equal in all members.
bounds: if there are any, they say what is whose: of each tensor in turn, where
  the members' shards begin, by rank, and where the last one ends.
packed: as in the reduce-scatter.
groups: as in the reduce-scatter; a member gathers what its group has.
outputs: the whole tensors.
rank: what the graph takes this member's rank to be; -1 if it does not matter.
tag: tells collectives of the same instance key apart.
timeout_seconds: until the operation fails; 0 waits for ever.
)doc");

REGISTER_OP("TfFuse>Permute")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("receivers: list(int) >= 1")
    .TF_FUSE_MEMBER_OF_A_GROUP.SetShapeFn(InferReduced)
    .Doc(R"doc(
Sends each member's tensors to another member, which has nothing to add to them.

inputs: tensors of any shape, equal in all members.
outputs: those of the member that sends to this one.
receivers: by rank, who receives what a member has; each member once.
packed: has no effect.
rank: what the graph takes this member's rank to be; -1 if it does not matter.
tag: tells collectives of the same instance key apart.
timeout_seconds: until the operation fails; 0 waits for ever.
)doc");

#undef TF_FUSE_MEMBER_OF_A_GROUP

}  // namespace tf_fuse
