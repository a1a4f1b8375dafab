// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/joint_send.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_fuse {

using tensorflow::Tensor;
using tensorflow::Variant;

namespace {

// Only a fused request of this process takes it apart. A peer that asks for its
// key by a single receive gets a variant that it cannot read.
struct JointSend {
  std::vector<Tensor> tensors;

  std::string TypeName() const { return "tf_fuse::JointSend"; }
  void Encode(tensorflow::VariantTensorData* data) const {
    data->set_type_name(TypeName());
  }
  bool Decode(const tensorflow::VariantTensorData& /*data*/) { return false; }
};

}  // namespace

Tensor MakeJointSend(std::vector<Tensor> tensors) {
  Tensor sent(tensorflow::DT_VARIANT, tensorflow::TensorShape({}));
  sent.scalar<Variant>()() = JointSend{std::move(tensors)};
  return sent;
}

absl::StatusOr<absl::Span<const Tensor>> ReadJointSend(const Tensor& sent,
                                                       size_t count) {
  std::string found = tensorflow::DataTypeString(sent.dtype());
  if (sent.dtype() == tensorflow::DT_VARIANT && sent.dims() == 0) {
    const Variant& value = sent.scalar<Variant>()();
    const auto* joint = value.get<JointSend>();
    if (joint != nullptr && joint->tensors.size() == count) {
      return absl::MakeConstSpan(joint->tensors);
    }
    found = joint != nullptr ? absl::StrCat("one of ", joint->tensors.size())
                             : value.TypeName();
  }
  return absl::InternalError(absl::StrCat(
      "expected a joint send of ", count, " tensors, got ", found,
      ". Please report this; switch fuse_operations off to go on."));
}

}  // namespace tf_fuse
