// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/choose_algorithm.h"

#include <cstdlib>
#include <string>

#include "channel/peer_card.h"
#include "channel/shared_memory/blocks.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

constexpr char kVariable[] = "TF_FUSE_COLLECTIVE_ALGORITHM";
constexpr char kRing[] = "RingReduce";
constexpr float kGraceSeconds = 5;

bool IsReducible(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT64:
      return true;
    default:
      return false;
  }
}

// What all members of a group can do.
struct Abilities {
  bool direct = true;
  bool grpc = true;
  bool tcp = true;
  bool shared_memory = true;
};

Abilities AbilitiesOf(const tensorflow::CollGroupParams& group) {
  Abilities all;
  std::string host;
  for (const tensorflow::CollGroupMember& member : group.members) {
    const v1::PeerCard card = CardOf(member.device).value_or(v1::PeerCard());
    if (host.empty()) host = card.host_id();
    all.direct = all.direct && (card.algorithms() & kDirectAlgorithm) != 0;
    all.grpc = all.grpc && card.serves_grpc();
    all.tcp = all.tcp && !card.tcp_address().empty();
    all.shared_memory = all.shared_memory && !card.unix_socket().empty() &&
                        card.host_id() == host;
  }
  return all;
}

// Whether each member can take part, and a way leads from each to each.
bool AllCan(const tensorflow::CollGroupParams& group) {
  const Abilities all = AbilitiesOf(group);
  return all.direct && (all.grpc || all.tcp || all.shared_memory);
}

}  // namespace

uint32_t OwnAlgorithms() {
  const char* text = std::getenv(kVariable);
  const std::string name = text == nullptr ? "" : text;
  if (name == "ring") return 0;
  if (!name.empty() && name != "direct") {
    LOG(WARNING) << "tf_fuse: " << kVariable << " is '" << name
                 << "', expected direct or ring; direct is used.";
  }
  return kDirectAlgorithm;
}

void ChooseAlgorithm(tensorflow::CollectiveParams* params) {
  std::string& name = params->instance.impl_details.collective_name;
  if (params->instance.type == tensorflow::REDUCTION_COLLECTIVE &&
      name == kRing &&
      params->group.device_type == tensorflow::DeviceType("CPU") &&
      params->group.group_size > 1 && IsReducible(params->instance.data_type) &&
      AllCan(params->group)) {
    name = kDirectReduce;
    TakeOverTimeout(&params->instance);
  }
}

int64_t PieceBytes(const tensorflow::CollGroupParams& group) {
  // What lies in shared memory should stay in the caches; an RPC costs more
  // than a message.
  constexpr int64_t kPieceOfRpc = 4 << 20;
  return AbilitiesOf(group).shared_memory ? static_cast<int64_t>(kBlockBytes)
                                          : kPieceOfRpc;
}

float OwnTimeoutSeconds(const tensorflow::CollInstanceParams& instance) {
  const float seconds = instance.impl_details.timeout_seconds;
  return seconds > kGraceSeconds ? seconds - kGraceSeconds : 0;
}

void TakeOverTimeout(tensorflow::CollInstanceParams* instance) {
  float& seconds = instance->impl_details.timeout_seconds;
  if (seconds > 0) seconds += kGraceSeconds;
}

}  // namespace tf_fuse
