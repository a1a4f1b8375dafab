// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/receive_keys.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "frame/frame.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_fuse {

using tensorflow::DeviceNameUtils;
using tensorflow::FrameAndIter;
using tensorflow::Rendezvous;

const char kFusedRendezvousKey[] = "tf_fuse.v1.FuseRecvTensor";

const char kPartialRequestTypeUrl[] =
    "type.googleapis.com/tf_fuse.v1.parts/tf_fuse.v1.FuseRecvTensorRequest";

namespace {

absl::Status CheckJointSends(const std::vector<uint32_t>& sizes,
                             size_t tensors) {
  uint64_t sum = 0;
  for (const uint32_t size : sizes) {
    if (size < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a joint send of ", size, " tensors, expected 2 or more"));
    }
    sum += size;
  }
  if (sum <= tensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("joint sends of ", sum, " tensors, there are ", tensors));
}

}  // namespace

absl::Status FinishFusedKeys(FusedKeys* keys) {
  std::string device;
  if (!DeviceNameUtils::SplitDeviceName(keys->send_device, &keys->send_task,
                                        &device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("_FuseRecv: send_device is not a full device name: '",
                     keys->send_device, "'"));
  }
  DeviceNameUtils::ParsedName parsed;
  if (!DeviceNameUtils::ParseFullName(keys->recv_device, &parsed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("_FuseRecv: recv_device is not a device name: '",
                     keys->recv_device, "'"));
  }
  if (keys->tensor_names.size() != keys->types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("_FuseRecv: ", keys->tensor_names.size(),
                     " tensor_names but ", keys->types.size(), " types"));
  }
  const absl::Status joint =
      CheckJointSends(keys->joint_sends, keys->tensor_names.size());
  if (!joint.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("_FuseRecv: ", joint.message()));
  }
  keys->rendezvous_key = FusedRendezvousKey(
      keys->send_device, keys->recv_device, keys->tensor_names.size());
  if (!BuildRequest(*keys, FrameAndIter(0, 0))
           .SerializeToString(&keys->root_request)) {
    return absl::InvalidArgumentError(
        "_FuseRecv: the names of the tensors do not fit into one request");
  }
  return absl::OkStatus();
}

v1::FuseRecvTensorRequest BuildRequest(const FusedKeys& keys,
                                       const FrameAndIter& frame_iter,
                                       bool report_waits) {
  v1::FuseRecvTensorRequest request;
  request.set_report_waits(report_waits);
  request.set_frame_version(frame::kVersion);
  request.set_send_device(keys.send_device);
  request.set_send_device_incarnation(keys.send_device_incarnation);
  request.set_recv_device(keys.recv_device);
  request.set_frame_id(frame_iter.frame_id);
  request.set_iteration(frame_iter.iter_id);
  request.set_max_frame_bytes(MaxFrameBytes());
  request.mutable_tensor_names()->Reserve(
      static_cast<int>(keys.tensor_names.size()));
  for (const std::string& name : keys.tensor_names) {
    request.add_tensor_names(name);
  }
  for (const uint32_t size : keys.joint_sends) request.add_joint_sends(size);
  return request;
}

absl::Status ParseSlotKey(const FusedKeys& keys, size_t index,
                          const FrameAndIter& frame_iter,
                          Rendezvous::ParsedKey* parsed) {
  return Rendezvous::ParseKey(
      Rendezvous::CreateKey(keys.send_device, keys.send_device_incarnation,
                            keys.recv_device, keys.tensor_names[index],
                            frame_iter),
      parsed);
}

uint64_t RendezvousKeyBytes(uint64_t send_device_bytes,
                            uint64_t recv_device_bytes,
                            uint64_t tensor_name_bytes) {
  // Four semicolons, 16 hexadecimal digits, and "frame:iteration" with 20 each.
  return send_device_bytes + recv_device_bytes + tensor_name_bytes + 61;
}

absl::StatusOr<RequestSize> MeasureRequest(const std::string& serialized) {
  using Request = v1::FuseRecvTensorRequest;
  using google::protobuf::internal::WireFormatLite;
  const auto not_parseable = [&serialized] {
    return absl::InvalidArgumentError(absl::StrCat(
        "FuseRecvTensorRequest: not parseable, ", serialized.size(), " bytes"));
  };
  if (serialized.size() > INT_MAX) return not_parseable();
  google::protobuf::io::CodedInputStream input(
      reinterpret_cast<const uint8_t*>(serialized.data()),
      static_cast<int>(serialized.size()));
  RequestSize size;
  size.message_bytes = serialized.size();
  uint64_t send_device_bytes = 0;
  uint64_t recv_device_bytes = 0;
  uint64_t name_bytes = 0;
  uint64_t longest_name_bytes = 0;
  uint64_t longest_name = 0;
  uint64_t other_bytes = 0;
  while (const uint32_t tag = input.ReadTag()) {
    const int begin = input.CurrentPosition();
    uint32_t bytes = 0;
    if (WireFormatLite::GetTagWireType(tag) !=
        WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return not_parseable();
      other_bytes += static_cast<uint64_t>(input.CurrentPosition() - begin);
      continue;
    }
    if (!input.ReadVarint32(&bytes) || bytes > serialized.size() ||
        !input.Skip(static_cast<int>(bytes))) {
      return not_parseable();
    }
    switch (WireFormatLite::GetTagFieldNumber(tag)) {
      case Request::kSendDeviceFieldNumber:
        send_device_bytes = std::max<uint64_t>(send_device_bytes, bytes);
        break;
      case Request::kRecvDeviceFieldNumber:
        recv_device_bytes = std::max<uint64_t>(recv_device_bytes, bytes);
        break;
      case Request::kTensorNamesFieldNumber:
        if (bytes > longest_name_bytes) {
          longest_name_bytes = bytes;
          longest_name = size.keys;
        }
        name_bytes += bytes;
        ++size.keys;
        break;
      default:
        other_bytes += bytes;
    }
  }
  if (!input.ConsumedEntireMessage()) return not_parseable();
  if (size.keys > MaxKeysPerRequest()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FuseRecvTensorRequest: ", size.keys, " tensor names, at most ",
        MaxKeysPerRequest(), " are served; ", kMaxKeysPerRequestVariable,
        " on this task raises the limit"));
  }
  const uint64_t longest_key = RendezvousKeyBytes(
      send_device_bytes, recv_device_bytes, longest_name_bytes);
  if (longest_key > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("FuseRecvTensorRequest: tensor ", longest_name, " of ",
                     size.keys, ": its rendezvous key takes ", longest_key,
                     " bytes, at most ", kMaxKeyBytes, " are served"));
  }
  // Fields of a newer version are skipped, but take memory while parsed.
  if (other_bytes > kMaxOtherFieldsBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("FuseRecvTensorRequest: ", other_bytes,
                     " bytes in other fields than devices and names, at most ",
                     kMaxOtherFieldsBytes, " are read"));
  }
  size.key_bytes =
      size.keys * RendezvousKeyBytes(send_device_bytes, recv_device_bytes, 0) +
      name_bytes;
  return size;
}

absl::StatusOr<std::shared_ptr<const ParsedKeys>> ParseRequest(
    const std::string& serialized, const RequestSize& size) {
  v1::FuseRecvTensorRequest request;
  if (!request.ParseFromString(serialized)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FuseRecvTensorRequest: not parseable, ", serialized.size(), " bytes"));
  }
  if (request.frame_version() != frame::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "FuseRecvTensorRequest: the receiver reads frames of version ",
        request.frame_version(), ", this task writes version ", frame::kVersion,
        "; install the same tf_fuse in all tasks"));
  }
  auto parsed = std::make_shared<ParsedKeys>();
  parsed->max_packed_tensor_bytes = request.max_packed_tensor_bytes() != 0
                                        ? request.max_packed_tensor_bytes()
                                        : MaxPackedTensorBytes();
  parsed->max_frame_bytes = MaxFrameBytes();
  if (request.max_frame_bytes() != 0) {
    parsed->max_frame_bytes =
        std::min(parsed->max_frame_bytes, request.max_frame_bytes());
  }
  parsed->size = size;
  parsed->report_waits = request.report_waits();
  parsed->channel = request.channel();
  parsed->channel_bytes = request.channel_bytes();
  if (request.tensor_names_size() == 0) {
    parsed->stalled_request_id = request.stalled_request_id();
    parsed->awaited_request_id = request.awaited_request_id();
    parsed->question = request.question();
  }
  parsed->keys.resize(request.tensor_names_size());
  const FrameAndIter frame_iter(request.frame_id(), request.iteration());
  parsed->in_loop = !(frame_iter == FrameAndIter(0, 0));
  absl::flat_hash_set<absl::string_view> names;
  for (int i = 0; i < request.tensor_names_size(); ++i) {
    const std::string& name = request.tensor_names(i);
    // Two receives of one tensor: the second would wait for ever.
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "FuseRecvTensorRequest: tensor ", i, " of ",
          request.tensor_names_size(), ": the name '", absl::CHexEscape(name),
          "' stands in the request twice"));
    }
    if (absl::StrContains(name, '\0')) {
      return absl::InvalidArgumentError(
          absl::StrCat("FuseRecvTensorRequest: tensor ", i, " of ",
                       request.tensor_names_size(), ": the name '",
                       absl::CHexEscape(name), "' has a NUL character in it"));
    }
    const std::string key = Rendezvous::CreateKey(
        request.send_device(), request.send_device_incarnation(),
        request.recv_device(), request.tensor_names(i), frame_iter);
    absl::Status status = Rendezvous::ParseKey(key, &parsed->keys[i]);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("FuseRecvTensorRequest: tensor ", i, " of ",
                       request.tensor_names_size(), ": ", status.message()));
    }
  }
  parsed->joint_sends.assign(request.joint_sends().begin(),
                             request.joint_sends().end());
  const absl::Status joint =
      CheckJointSends(parsed->joint_sends, parsed->keys.size());
  if (!joint.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("FuseRecvTensorRequest: ", joint.message()));
  }
  parsed->rest_of_requests.assign(request.rest_of_requests().begin(),
                                  request.rest_of_requests().end());
  if (!parsed->keys.empty()) {
    parsed->source = parsed->keys[0];
  } else if (!parsed->rest_of_requests.empty()) {
    const absl::Status status = Rendezvous::ParseKey(
        Rendezvous::CreateKey(request.send_device(),
                              request.send_device_incarnation(),
                              request.recv_device(), "rest", frame_iter),
        &parsed->source);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("FuseRecvTensorRequest: ", status.message()));
    }
  }
  return std::shared_ptr<const ParsedKeys>(std::move(parsed));
}

std::string FusedRendezvousKey(const std::string& send_device,
                               const std::string& recv_device, size_t tensors) {
  // The sender reads no more than kMaxOtherFieldsBytes of all that is not ours.
  if (send_device.size() + recv_device.size() > kMaxOtherFieldsBytes / 2) {
    return kFusedRendezvousKey;
  }
  return absl::StrCat(send_device, ";", kFusedRendezvousKey, ";", recv_device,
                      ";", tensors, tensors == 1 ? " tensor" : " tensors",
                      " (fused);0:0");
}

bool IsAnswerOfPlainPeer(const absl::Status& status) {
  return absl::IsInvalidArgument(status) &&
         absl::StrContains(status.message(), "rendezvous key") &&
         absl::StrContains(status.message(), kFusedRendezvousKey);
}

std::string DescribeFusedKeys(const FusedKeys& keys) {
  const size_t count = keys.tensor_names.size();
  return absl::StrCat(count, count == 1 ? " tensor from " : " tensors from ",
                      keys.send_device, " to ", keys.recv_device);
}

}  // namespace tf_fuse
