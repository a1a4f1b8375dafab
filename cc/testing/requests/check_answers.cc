// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The checks of what the fuzzer of requests gets: see fuzz_task.h.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/limits.h"
#include "testing/requests/fuzz_task.h"
#include "testing/tensor_values.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"

namespace tf_fuse {
namespace testing {

using tensorflow::Rendezvous;

namespace {

std::vector<std::string> NamesOf(const ParsedKeys& keys) {
  std::vector<std::string> names;
  for (const Rendezvous::ParsedKey& key : keys.keys) {
    names.emplace_back(key.edge_name);
  }
  return names;
}

// A slot of an answer. What is beside is sent singly.
void CheckSent(const Slot& slot, const std::string& name) {
  if (slot.beside || SameValue(slot, ValueOf(name))) return;
  Die("served another value", slot.tensor.DebugString());
}

// A request for nothing is answered with an empty frame.
void CheckProbe(const tensorflow::Tensor& frame) {
  std::vector<Slot> slots;
  const absl::Status status = UnpackFrame(frame, {}, {}, &slots);
  if (!status.ok()) Die("a probe", status.ToString());
}

}  // namespace

void CheckMeasure(const std::string& serialized) {
  const absl::StatusOr<RequestSize> size = MeasureRequest(serialized);
  v1::FuseRecvTensorRequest parsed;
  if (!parsed.ParseFromString(serialized)) return;
  if (!size.ok()) {
    if (!absl::StrContains(size.status().message(), "at most")) {
      Die("a message was refused", size.status().ToString());
    }
    return;
  }
  const auto names = static_cast<uint64_t>(parsed.tensor_names_size());
  uint64_t key_bytes = 0;
  for (const std::string& name : parsed.tensor_names()) {
    const uint64_t bytes = RendezvousKeyBytes(
        parsed.send_device().size(), parsed.recv_device().size(), name.size());
    if (bytes > kMaxKeyBytes) Die("a long key", name);
    key_bytes += bytes;
  }
  if (size->keys != names || names > MaxKeysPerRequest() ||
      key_bytes > size->key_bytes || size->message_bytes != serialized.size()) {
    Die("measured otherwise",
        absl::StrCat(size->keys, " keys, ", names, "; ", size->key_bytes,
                     " bytes, ", key_bytes));
  }
}

void Scenario::CheckReceived(const Received& received) {
  if (received.answers != 1) Die("answered twice", "a receive");
  if (!received.status.ok()) {
    if (received.status.message().empty()) Die("an error without text", "");
    if (absl::StrContains(received.status.message(), "; failed: ]]")) {
      Die("an error of no tensor", received.status.ToString());
    }
    return;
  }
  if (received.slots.size() != received.keys->types.size()) {
    Die("slots", absl::StrCat(received.slots.size()));
  }
  for (size_t i = 0; i < received.slots.size(); ++i) {
    const Slot& slot = received.slots[i];
    if (slot.is_dead) continue;
    if (slot.tensor.dtype() != received.keys->types[i]) Die("type", "");
    const Slot expected = ValueOf(received.keys->tensor_names[i]);
    if (received.changed) {
      (void)BytesOf(slot.tensor);
    } else if (!SameValue(slot, expected)) {
      Die("received another value", slot.tensor.DebugString());
    }
  }
}

void Scenario::CheckAnswer(Asked* asked) {
  if (!asked->status.ok()) {
    if (asked->status.message().empty()) Die("an error without text", "");
    const auto named = asked->status.GetPayload(kFailedSlotsPayload);
    if (named.has_value() && named->empty()) {
      Die("an error of no tensor", asked->status.ToString());
    }
    if (asked->by_parts) CheckFailedPart(*asked);
    return;
  }
  tensorflow::Tensor frame;
  bool is_dead = false;
  if (!asked->answer.Read(tasks_->receiver.device(), &frame, &is_dead)) {
    Die("an answer that is no message", "");
  }
  if (asked->keys == nullptr) return;  // Of TensorFlow.
  const ParsedKeys& keys = *asked->keys;
  if (keys.is_question()) {
    const auto bytes = ReadBytesResponse(frame);
    if (!bytes.ok()) Die("an answer to a question", bytes.status().ToString());
    return;
  }
  if (asked->by_parts) {
    CheckPart(asked, std::move(frame));
  } else if (keys.keys.empty()) {
    CheckProbe(frame);
  } else {
    CheckFrame(asked, std::move(frame));
  }
}

void Scenario::CheckFrame(Asked* asked, tensorflow::Tensor frame) {
  const ParsedKeys& keys = *asked->keys;
  std::vector<Slot> slots;
  const std::vector<std::string> names = NamesOf(keys);
  std::vector<int64_t> waits;
  const absl::Status status = UnpackFrame(frame, TypesOf(names), {}, &slots,
                                          keys.report_waits ? &waits : nullptr);
  if (!status.ok()) Die("a frame that we made", status.ToString());
  frame = tensorflow::Tensor();  // The slots keep it.
  asked->answer.Empty();
  if (keys.report_waits && waits.size() != names.size()) Die("waits", "");
  for (size_t i = 0; i < slots.size(); ++i) CheckSent(slots[i], names[i]);
}

Scenario::Parts Scenario::PartsOf(const Asked& asked) {
  Parts parts;
  for (const int64_t id : asked.keys->rest_of_requests) {
    const auto& left = left_[{asked.request.step_id(), id}];
    parts.insert(parts.end(), left.begin(), left.end());
  }
  for (const std::string& name : NamesOf(*asked.keys)) {
    parts.push_back(std::make_shared<Part>(Part{name}));
  }
  return parts;
}

void Scenario::EndParts(const Asked& asked, const Parts& parts,
                        const std::vector<size_t>& ended) {
  Parts rest;
  for (size_t i = 0, next = 0; i < parts.size(); ++i) {
    if (next == ended.size() || ended[next] != i) {
      rest.push_back(parts[i]);
      continue;
    }
    ++next;
    if (parts[i]->ended) Die("a tensor was answered twice", parts[i]->name);
    parts[i]->ended = true;
  }
  if (!rest.empty()) {
    left_[{asked.request.step_id(), asked.request.request_id()}] = rest;
  }
}

void Scenario::CheckPart(Asked* asked, tensorflow::Tensor frame) {
  const bool report_waits = asked->keys->report_waits;
  const Parts parts = PartsOf(*asked);
  std::vector<std::string> names;
  for (const auto& part : parts) names.push_back(part->name);
  std::vector<size_t> positions;
  std::vector<Slot> slots;
  std::vector<int64_t> waits;
  const absl::Status status =
      UnpackPartialFrame(frame, TypesOf(names), std::vector<bool>(names.size()),
                         &positions, &slots, report_waits ? &waits : nullptr);
  if (!status.ok()) Die("a part that we made", status.ToString());
  frame = tensorflow::Tensor();  // The slots keep it.
  asked->answer.Empty();
  if (report_waits && waits.size() != slots.size()) Die("waits", "of a part");
  EndParts(*asked, parts, positions);
  for (size_t i = 0; i < slots.size(); ++i) {
    CheckSent(slots[i], names[positions[i]]);
  }
}

void Scenario::CheckFailedPart(const Asked& asked) {
  // Without the payload nothing of it is kept, or it was refused.
  if (asked.keys == nullptr ||
      !asked.status.GetPayload(kFailedSlotsPayload).has_value()) {
    return;
  }
  const Parts parts = PartsOf(asked);
  EndParts(asked, parts, FailedIndices(asked.status, parts.size()));
}

}  // namespace testing
}  // namespace tf_fuse
