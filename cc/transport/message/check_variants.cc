// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/check_variants.h"

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "google/protobuf/io/coded_stream.h"
#include "tensorflow/core/framework/resource_handle.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_fuse {

using google::protobuf::io::CodedInputStream;
using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandleProto;
using tensorflow::TensorProto;
using tensorflow::TensorShape;
using tensorflow::VariantTensorDataProto;

namespace {

// A list of lists of lists is as deep as models go.
constexpr int kMaxDepth = 8;

CodedInputStream Reader(const std::string& bytes) {
  return CodedInputStream(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<int>(bytes.size()));
}

// Calls `check` for each element of a tensor's content, as TensorFlow lays them
// out: all sizes, then all messages.
template <typename Message, typename Check>
bool AllOfContent(const std::string& content, int64_t elements, Check check) {
  if (elements > static_cast<int64_t>(content.size())) return false;
  CodedInputStream sizes = Reader(content);
  std::vector<uint32_t> bytes(static_cast<size_t>(elements));
  uint64_t total = 0;
  for (uint32_t& size : bytes) {
    if (!sizes.ReadVarint32(&size)) return false;
    total += size;
  }
  size_t at = static_cast<size_t>(sizes.CurrentPosition());
  if (total != content.size() - at) return false;
  for (const uint32_t size : bytes) {
    Message message;
    if (!message.ParseFromArray(content.data() + at, static_cast<int>(size)) ||
        !check(message)) {
      return false;
    }
    at += size;
  }
  return true;
}

// Number of tensors without a value, their indices, type of the elements, most
// elements, shape of an element. TensorFlow puts `tensors` where no index is.
bool IsListMetadata(const std::string& metadata, uint64_t tensors) {
  CodedInputStream input = Reader(metadata);
  uint64_t missing = 0;
  if (!input.ReadVarint64(&missing) || missing > metadata.size()) return false;
  uint64_t last = 0;
  for (uint64_t i = 0; i < missing; ++i) {
    uint64_t index = 0;
    if (!input.ReadVarint64(&index) || index >= tensors + missing ||
        (i > 0 && index <= last)) {
      return false;
    }
    last = index;
  }
  uint64_t type = 0;
  uint64_t most = 0;
  if (!input.ReadVarint64(&type) || !input.ReadVarint64(&most) ||
      !tensorflow::DataType_IsValid(static_cast<int>(type)) ||
      type > static_cast<uint64_t>(INT32_MAX)) {
    return false;
  }
  tensorflow::TensorShapeProto shape;
  return shape.ParseFromString(
             metadata.substr(static_cast<size_t>(input.CurrentPosition()))) &&
         PartialTensorShape::IsValid(shape);
}

bool IsSound(const ResourceHandleProto& handle) {
  for (const auto& part : handle.dtypes_and_shapes()) {
    if (!PartialTensorShape::IsValid(part.shape())) return false;
  }
  return true;
}

bool IsSound(const TensorProto& proto, int depth);

bool IsSound(const VariantTensorDataProto& variant, int depth) {
  static const auto* numbers =
      new absl::flat_hash_set<std::string>{"bool", "double", "float", "int"};
  for (const TensorProto& tensor : variant.tensors()) {
    tensorflow::Tensor decoded;
    if (!IsSound(tensor, depth + 1) || !decoded.FromProto(tensor)) return false;
  }
  const std::string& kind = variant.type_name();
  const int tensors = variant.tensors_size();
  if (kind == "tensorflow::TensorList") {
    return IsListMetadata(variant.metadata(), static_cast<uint64_t>(tensors));
  }
  if (kind == "tensorflow::Tensor") return tensors == 1;
  return tensors == 0 && (kind.empty() || numbers->contains(kind));
}

bool IsSound(const TensorProto& proto, int depth) {
  if (depth > kMaxDepth || !TensorShape::IsValid(proto.tensor_shape())) {
    return false;
  }
  const int64_t elements = TensorShape(proto.tensor_shape()).num_elements();
  // Else a few bytes would ask for much memory.
  if (elements > static_cast<int64_t>(proto.ByteSizeLong())) return false;
  const std::string& content = proto.tensor_content();
  if (proto.dtype() == tensorflow::DT_VARIANT) {
    const auto check = [depth](const VariantTensorDataProto& variant) {
      return IsSound(variant, depth);
    };
    for (const auto& variant : proto.variant_val()) {
      if (!check(variant)) return false;
    }
    return content.empty() ||
           AllOfContent<VariantTensorDataProto>(content, elements, check);
  }
  if (proto.dtype() == tensorflow::DT_RESOURCE) {
    const auto check = [](const ResourceHandleProto& h) { return IsSound(h); };
    for (const auto& handle : proto.resource_handle_val()) {
      if (!check(handle)) return false;
    }
    return content.empty() ||
           AllOfContent<ResourceHandleProto>(content, elements, check);
  }
  return true;
}

}  // namespace

bool CanBeDecoded(const TensorProto& proto) { return IsSound(proto, 0); }

}  // namespace tf_fuse
