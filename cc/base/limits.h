// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a task accepts from its peers, and how much memory it spends on them.
// Most limits are constants that an environment variable may replace; it is
// read once. Any value but a whole number within the bounds is reported and
// ignored. docs/environment.md has these variables.

#ifndef TF_FUSE_CC_BASE_LIMITS_H_
#define TF_FUSE_CC_BASE_LIMITS_H_

#include <cstdint>

namespace tf_fuse {

inline constexpr char kMaxKeysPerRequestVariable[] =
    "TF_FUSE_MAX_KEYS_PER_REQUEST";
inline constexpr char kMaxPackedTensorBytesVariable[] =
    "TF_FUSE_MAX_PACKED_TENSOR_BYTES";
inline constexpr char kMaxFrameBytesVariable[] = "TF_FUSE_MAX_FRAME_BYTES";
inline constexpr char kMaxPendingRequestsVariable[] =
    "TF_FUSE_MAX_PENDING_REQUESTS";
inline constexpr char kMaxPendingBytesVariable[] = "TF_FUSE_MAX_PENDING_BYTES";
inline constexpr char kMaxUnsentFrameBytesVariable[] =
    "TF_FUSE_MAX_UNSENT_FRAME_BYTES";
inline constexpr char kStepWaitVariable[] = "TF_FUSE_STEP_WAIT_MS";
inline constexpr char kStallWarnVariable[] = "TF_FUSE_STALL_WARN_MS";

// Tensors of one request. The pass makes no larger group.
inline constexpr uint64_t kDefaultMaxKeysPerRequest = 1 << 16;
// No setting allows more. The frame's decoder has the same limit.
inline constexpr uint64_t kLimitOfKeysPerRequest = 1 << 20;
uint64_t MaxKeysPerRequest();

// Bytes of one rendezvous key, as RendezvousKeyBytes() counts. The pass fuses
// no receive with a longer one.
inline constexpr uint64_t kMaxKeyBytes = 4096;

// Bytes of all other fields of a request, and of the message around it. They
// need about three hundred; fields that are not known take memory, too.
inline constexpr uint64_t kMaxOtherFieldsBytes = 1024;

// Above this size a tensor is left out of the frame and fetched by a receive of
// its own, and so are the largest ones of a frame that would grow beyond the
// other size. Both were chosen by measurement: see docs/benchmarks.md, "Large
// frames".
inline constexpr uint64_t kDefaultMaxPackedTensorBytes = 1 << 20;
inline constexpr uint64_t kDefaultMaxFrameBytes = 16 << 20;
// What gRPC can carry, with some room.
inline constexpr uint64_t kLimitOfFrameBytes = 1 << 30;
uint64_t MaxPackedTensorBytes();
uint64_t MaxFrameBytes();

// Fused requests that wait in this task, for their step or for tensors: how
// many, how many of one step (a fifth of them), and how many bytes they may
// take (as estimated by RequestCost()).
inline constexpr uint64_t kDefaultMaxPendingRequests = 100000;
inline constexpr uint64_t kDefaultMaxPendingBytes = uint64_t{4} << 30;
uint64_t MaxPendingRequests();
uint64_t MaxPendingRequestsPerStep();
uint64_t MaxPendingBytes();

// Bytes of packed frames that their receivers have not taken yet. Beyond,
// tensors are not packed but sent one by one, which needs no copy.
inline constexpr uint64_t kDefaultMaxUnsentFrameBytes = uint64_t{4} << 30;
uint64_t MaxUnsentFrameBytes();

// Bytes of parsed requests that are remembered.
inline constexpr uint64_t kRequestCacheBytes = 256 << 20;

// How long the sender keeps a request whose step has not begun until its
// receiver has to ask again.
inline constexpr uint64_t kDefaultStepWaitMs = 10000;
uint64_t StepWaitMicros();

// How long a fused receive may wait until that is logged; 0 means never.
inline constexpr uint64_t kDefaultStallWarnMs = 60000;
uint64_t StallMicros();

// A frame of at least so many bytes comes by a data channel, if its receiver
// has one to the sender. Chosen by measurement: see docs/benchmarks.md, "Large
// frames".
inline constexpr char kChannelFrameBytesVariable[] =
    "TF_FUSE_CHANNEL_FRAME_BYTES";
inline constexpr uint64_t kDefaultChannelFrameBytes = 1 << 20;
uint64_t ChannelFrameBytes();

// Memory that a task lends to others of its host for collectives; 0 lends none,
// and then chunks go by other ways.
inline constexpr char kMaxSharedMemoryBytesVariable[] =
    "TF_FUSE_MAX_SHARED_MEMORY_BYTES";
inline constexpr uint64_t kDefaultMaxSharedMemoryBytes = 256 << 20;
uint64_t MaxSharedMemoryBytes();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_LIMITS_H_
