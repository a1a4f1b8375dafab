// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/peer_card.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

constexpr char kPathsVariable[] = "TF_FUSE_COLLECTIVE_PATHS";
// Descriptions of devices are text, and end up in logs.
constexpr char kBegin[] = " tf_fuse_card:";
constexpr size_t kTokenBytes = 16;

bool FillWithRandom(void* data, size_t size) {
  return getrandom(data, size, 0) == static_cast<ssize_t>(size);
}

DataPaths PathsFromEnvironment() {
  const char* text = std::getenv(kPathsVariable);
  DataPaths paths;
  if (text == nullptr || *text == '\0') return paths;
  paths = {false, false, false};
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (name == "shm") {
      paths.shared_memory = true;
    } else if (name == "tcp") {
      paths.tcp = true;
    } else if (name == "grpc") {
      paths.grpc = true;
    } else if (name != "stock") {
      LOG(WARNING) << "tf_fuse: " << kPathsVariable << " is '" << text
                   << "', expected some of shm, tcp, grpc, or stock; '" << name
                   << "' is ignored.";
    }
  }
  return paths;
}

}  // namespace

const DataPaths& AllowedPaths() {
  static const DataPaths* const paths = new DataPaths(PathsFromEnvironment());
  return *paths;
}

void AttachCard(const v1::PeerCard& card,
                tensorflow::DeviceAttributes* attributes) {
  absl::StrAppend(attributes->mutable_physical_device_desc(), kBegin,
                  absl::WebSafeBase64Escape(card.SerializeAsString()));
}

std::optional<v1::PeerCard> CardOf(
    const tensorflow::DeviceAttributes& attributes) {
  const std::string& text = attributes.physical_device_desc();
  const size_t begin = text.rfind(kBegin);
  std::string bytes;
  v1::PeerCard card;
  if (begin == std::string::npos ||
      !absl::WebSafeBase64Unescape(text.substr(begin + std::strlen(kBegin)),
                                   &bytes) ||
      !card.ParseFromString(bytes) || card.version() != kChannelVersion) {
    return std::nullopt;
  }
  return card;
}

std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  struct stat network;
  // If the card does not name it, connecting shows whether they share one.
  if (id.empty() || stat("/proc/self/ns/net", &network) != 0) return id;
  return absl::StrCat(id, ".", network.st_ino);
}

std::string RandomToken() {
  std::string token(kTokenBytes, '\0');
  return FillWithRandom(token.data(), token.size()) ? token : "";
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  return FillWithRandom(&number, sizeof(number)) ? number : 0;
}

}  // namespace tf_fuse
