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
constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;

struct Whole {
  std::string head;
  tensorflow::Tensor tensor;
};

// All of the message but `content` bytes at its end, which are the tensor's.
std::string HeadOf(const tensorflow::RecvTensorResponse& response,
                   uint64_t content) {
  using google::protobuf::io::CodedOutputStream;
  using tensorflow::RecvTensorResponse;
  using tensorflow::TensorProto;
  std::string described;  // Type and shape, then how long the content is.
  {
    google::protobuf::io::StringOutputStream stream(&described);
    CodedOutputStream out(&stream);
    out.WriteString(response.tensor().SerializeAsString());
    out.WriteTag(WireFormatLite::MakeTag(TensorProto::kTensorContentFieldNumber,
                                         kBytes));
    out.WriteVarint64(content);
  }
  RecvTensorResponse others = response;
  others.clear_tensor();
  std::string head = others.SerializeAsString();
  std::string begin;
  {
    google::protobuf::io::StringOutputStream stream(&begin);
    CodedOutputStream out(&stream);
    out.WriteTag(WireFormatLite::MakeTag(RecvTensorResponse::kTensorFieldNumber,
                                         kBytes));
    out.WriteVarint64(described.size() + content);
  }
  return absl::StrCat(head, begin, described);
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
    response.mutable_tensor()->set_dtype(tensor.dtype());
    tensor.shape().AsProto(response.mutable_tensor()->mutable_tensor_shape());
    const auto content = whole->tensor.tensor_data();
    whole->head = HeadOf(response, content.size());
    answer.pieces = {whole->head, {content.data(), content.size()}};
  }
  answer.owner = whole;
  return answer;
}

}  // namespace tf_fuse
