// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/tensor_answer.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tf_fuse {

namespace {

using google::protobuf::internal::WireFormatLite;

constexpr uint64_t kMaxBytes = uint64_t{1} << 31;

struct Whole {
  std::string head;
  tensorflow::Tensor tensor;
};

// Appends what stands before a field of so many bytes.
void AppendTag(int field, uint64_t bytes, std::string* to) {
  google::protobuf::io::StringOutputStream stream(to);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(WireFormatLite::MakeTag(
      field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint64(bytes);
}

// All of a message but `content` bytes at its end, which are the tensor's:
// `tensor` has its type and shape, `response` the other fields.
std::string HeadOf(const tensorflow::RecvTensorResponse& response,
                   const tensorflow::TensorProto& tensor, uint64_t content) {
  std::string inner = tensor.SerializeAsString();
  AppendTag(tensorflow::TensorProto::kTensorContentFieldNumber, content,
            &inner);
  std::string head = response.SerializeAsString();
  AppendTag(tensorflow::RecvTensorResponse::kTensorFieldNumber,
            inner.size() + content, &head);
  return head + inner;
}

}  // namespace

absl::StatusOr<AnswerBytes> AnswerWith(const tensorflow::Tensor& tensor,
                                       bool is_dead) {
  if (tensor.TotalBytes() > kMaxBytes) {
    // (TensorFlow's words.)
    return absl::InternalError(absl::StrCat(
        "Cannot encode a Tensor that exceeds the 2GB protobuf limit. Exceeded "
        "bytes: ",
        tensor.TotalBytes() - kMaxBytes,
        " , tensor shape: ", tensor.shape().DebugString()));
  }
  tensorflow::RecvTensorResponse response;
  if (is_dead) response.set_is_dead(true);
  const auto whole = std::make_shared<Whole>();
  AnswerBytes answer;
  if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
    tensor.AsProtoTensorContent(response.mutable_tensor());
    if (!response.SerializeToString(&whole->head)) {
      return absl::InternalError(
          absl::StrCat("a tensor of ", response.ByteSizeLong(),
                       " bytes cannot be sent: the limit is ", kMaxBytes));
    }
    answer.pieces = {whole->head};
  } else {
    whole->tensor = tensor;
    tensorflow::TensorProto described;
    described.set_dtype(tensor.dtype());
    tensor.shape().AsProto(described.mutable_tensor_shape());
    const auto content = whole->tensor.tensor_data();
    whole->head = HeadOf(response, described, content.size());
    answer.pieces = {whole->head, {content.data(), content.size()}};
  }
  answer.owner = whole;
  return answer;
}

}  // namespace tf_fuse
