// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines the card that each member of a collective group gets of each other
// member before it sends anything. TensorFlow's group resolution hands the
// attributes of each member's device to all of them; a card is part of the
// device's description. So all members hold the same cards, and decide alike.

#ifndef TF_FUSE_CC_CHANNEL_PEER_CARD_H_
#define TF_FUSE_CC_CHANNEL_PEER_CARD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

inline constexpr uint32_t kChannelVersion = 2;

// The ways that a chunk may take between processes, of the environment variable
// TF_FUSE_COLLECTIVE_PATHS.
struct DataPaths {
  bool shared_memory = true;
  bool tcp = false;
  bool grpc = true;
};
const DataPaths& AllowedPaths();

// Adds a card to a device's attributes.
void AttachCard(const v1::PeerCard& card,
                tensorflow::DeviceAttributes* attributes);
// That of a device; none if its task has no plugin, or what is there is no
// card.
std::optional<v1::PeerCard> CardOf(
    const tensorflow::DeviceAttributes& attributes);

// Equal in all processes that run on this kernel, as long as it runs, in this
// network namespace, which containers of one host seldom share; empty if the
// system does not tell.
std::string HostId();

// Unguessable; empty, or 0, where the system has no random numbers.
std::string RandomToken();
uint64_t RandomNumber();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_PEER_CARD_H_
