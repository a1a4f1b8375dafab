// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A frame that is nowhere in one piece: who reads it copies from the tensors.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_UNPACKED_FRAME_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_UNPACKED_FRAME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/message/tensor_frame.h"

namespace tf_fuse {

// Immutable: several threads may read it at once.
class GatheredFrame {
 public:
  // Keeps the tensors of `slots`, as PackFrame() takes them. Errors: as there.
  static absl::StatusOr<std::shared_ptr<const GatheredFrame>> Make(
      std::vector<Slot> slots);

  uint64_t bytes() const { return bytes_; }
  // Copies `bytes` of the frame that PackFrame() would make, from `begin` on.
  void Read(uint64_t begin, uint64_t bytes, char* to) const;

 private:
  // Between two pieces there are zeros.
  struct Piece {
    uint64_t begin;
    uint64_t bytes;
    const char* data;
  };

  GatheredFrame() = default;

  std::vector<Slot> slots_;
  std::string head_;
  // Payloads that do not lie in a tensor as they travel.
  std::vector<std::unique_ptr<std::string>> written_;
  std::vector<Piece> pieces_;  // In order.
  uint64_t bytes_ = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_UNPACKED_FRAME_H_
