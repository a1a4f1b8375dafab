// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/limits.h"

#include <algorithm>

#include "base/environment.h"

namespace tf_fuse {

namespace {

// More would overflow nothing, but means nothing either.
constexpr uint64_t kManyRequests = 1 << 30;
constexpr uint64_t kDayMs = 86400000;
constexpr uint64_t kManyBytes = uint64_t{1} << 50;

}  // namespace

uint64_t MaxKeysPerRequest() {
  static const uint64_t limit =
      NumberFromEnvironment(kMaxKeysPerRequestVariable, 2,
                            kLimitOfKeysPerRequest, kDefaultMaxKeysPerRequest);
  return limit;
}

uint64_t MaxPackedTensorBytes() {
  static const uint64_t limit =
      NumberFromEnvironment(kMaxPackedTensorBytesVariable, 1,
                            kLimitOfFrameBytes, kDefaultMaxPackedTensorBytes);
  return limit;
}

uint64_t MaxFrameBytes() {
  static const uint64_t limit = NumberFromEnvironment(
      kMaxFrameBytesVariable, 1, kLimitOfFrameBytes, kDefaultMaxFrameBytes);
  return limit;
}

uint64_t MaxPendingRequests() {
  static const uint64_t limit =
      NumberFromEnvironment(kMaxPendingRequestsVariable, 1, kManyRequests,
                            kDefaultMaxPendingRequests);
  return limit;
}

uint64_t MaxPendingRequestsPerStep() {
  return std::max<uint64_t>(1, MaxPendingRequests() / 5);
}

uint64_t MaxPendingBytes() {
  static const uint64_t limit = NumberFromEnvironment(
      kMaxPendingBytesVariable, 1, kManyBytes, kDefaultMaxPendingBytes);
  return limit;
}

uint64_t MaxUnsentFrameBytes() {
  static const uint64_t limit = NumberFromEnvironment(
      kMaxUnsentFrameBytesVariable, 0, kManyBytes, kDefaultMaxUnsentFrameBytes);
  return limit;
}

uint64_t StepWaitMicros() {
  static const uint64_t micros =
      1000 *
      NumberFromEnvironment(kStepWaitVariable, 1, kDayMs, kDefaultStepWaitMs);
  return micros;
}

uint64_t StallMicros() {
  static const uint64_t micros =
      1000 *
      NumberFromEnvironment(kStallWarnVariable, 0, kDayMs, kDefaultStallWarnMs);
  return micros;
}

uint64_t ChannelFrameBytes() {
  static const uint64_t bytes = NumberFromEnvironment(
      kChannelFrameBytesVariable, 1, kManyBytes, kDefaultChannelFrameBytes);
  return bytes;
}

uint64_t MaxSharedMemoryBytes() {
  static const uint64_t limit =
      NumberFromEnvironment(kMaxSharedMemoryBytesVariable, 0, kManyBytes,
                            kDefaultMaxSharedMemoryBytes);
  return limit;
}

}  // namespace tf_fuse
