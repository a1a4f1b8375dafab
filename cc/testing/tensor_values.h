// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Computes the values that the fuzzed task sends: one per name, of all kinds
// that a frame holds, so that each answer can be checked.

#ifndef TF_FUSE_CC_TESTING_TENSOR_VALUES_H_
#define TF_FUSE_CC_TESTING_TENSOR_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"
#include "transport/message/tensor_frame.h"

namespace tf_fuse {
namespace testing {

inline uint32_t HashOf(absl::string_view name) {  // FNV-1a: the same everywhere
  uint32_t hash = 2166136261u;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  }
  return hash ^ hash >> 15;
}

// More bytes than the fuzzed task packs.
inline constexpr int64_t kTooLargeToPack = 3000;

inline Slot ValueOf(absl::string_view name) {
  using tensorflow::Tensor;
  using tensorflow::TensorShape;
  const uint32_t hash = HashOf(name);
  const auto number = static_cast<int>(hash >> 16);
  Slot slot;
  switch (hash % 10) {
    case 0:
      slot.is_dead = true;
      break;
    case 1:
      slot.tensor = Tensor(tensorflow::DT_STRING, TensorShape({2, 2}));
      for (int i = 0; i < 4; ++i) {
        slot.tensor.flat<tensorflow::tstring>()(i) =
            std::string(i * number % 50, 's');
      }
      break;
    case 2:
      slot.tensor = Tensor(tensorflow::DT_STRING, TensorShape({0}));
      break;
    case 3:
      slot.tensor = Tensor(tensorflow::DT_BOOL, TensorShape({3, 0}));
      break;
    case 4:
      slot.tensor =
          Tensor(tensorflow::DT_UINT8, TensorShape({kTooLargeToPack}));
      slot.tensor.flat<uint8_t>().setConstant(static_cast<uint8_t>(number));
      break;
    case 5:
      slot.tensor = Tensor(tensorflow::DT_VARIANT, TensorShape({}));
      slot.tensor.scalar<tensorflow::Variant>()() = Tensor(number);
      break;
    case 6: {
      slot.tensor = Tensor(tensorflow::DT_RESOURCE, TensorShape({}));
      auto& handle = slot.tensor.scalar<tensorflow::ResourceHandle>()();
      handle.set_name("handle");
      handle.set_hash_code(hash);
      break;
    }
    case 7:
      slot.tensor = Tensor(int64_t{number});
      break;
    default:
      slot.tensor = Tensor(tensorflow::DT_FLOAT, TensorShape({hash % 7, 2}));
      slot.tensor.flat<float>().setConstant(static_cast<float>(number));
  }
  return slot;
}

// The types of their values; a dead one has any.
inline tensorflow::DataTypeVector TypesOf(
    const std::vector<std::string>& names) {
  tensorflow::DataTypeVector types;
  for (const std::string& name : names) {
    const Slot value = ValueOf(name);
    types.push_back(value.is_dead ? tensorflow::DT_FLOAT
                                  : value.tensor.dtype());
  }
  return types;
}

// All bytes of a value, so that sanitizers see them read.
inline std::string BytesOf(const tensorflow::Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  return proto.SerializeAsString();
}

inline bool SameValue(const Slot& a, const Slot& b) {
  if (a.is_dead || b.is_dead) return a.is_dead && b.is_dead;
  return BytesOf(a.tensor) == BytesOf(b.tensor);
}

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_TENSOR_VALUES_H_
