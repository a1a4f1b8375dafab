// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/shard_layout.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/common_runtime/base_collective_executor.h"

namespace tf_fuse {

namespace {

// Of one tensor with so many elements.
ShardRange ShardOf(int64_t elements, int64_t element_bytes, int members,
                   int member) {
  if (elements == 0) return {};
  // As the ring with one subdivision, which CollectiveReduceV2 has by default.
  const int64_t step = tensorflow::CollectiveAdapter::AlignedChunkElts(
      element_bytes, elements, members);
  const int64_t begin = std::min(elements, member * step);
  return {begin, std::min(elements, begin + step)};
}

}  // namespace

ShardLayout::ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes,
                         int members, bool packed)
    : sizes_(std::move(sizes)),
      element_bytes_(element_bytes),
      members_(members),
      packed_(packed) {
  int64_t begin = 0;
  for (const int64_t size : sizes_) {
    begins_.push_back(begin);
    begin += size;
  }
  begins_.push_back(begin);
}

ShardLayout::ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes,
                         int members, std::vector<int64_t> bounds)
    : sizes_(std::move(sizes)),
      element_bytes_(element_bytes),
      members_(members),
      packed_(false),
      bounds_(std::move(bounds)) {}

ShardRange ShardLayout::Of(size_t tensor, int member) const {
  if (!bounds_.empty()) {
    const size_t first = tensor * (members_ + 1) + member;
    return {bounds_[first], bounds_[first + 1]};
  }
  if (!packed_) {
    return ShardOf(sizes_[tensor], element_bytes_, members_, member);
  }
  const ShardRange shard =
      ShardOf(begins_.back(), element_bytes_, members_, member);
  const int64_t first = begins_[tensor];
  // The same place for what has nothing, so that it is no range backwards.
  const int64_t begin =
      std::clamp<int64_t>(shard.begin - first, 0, sizes_[tensor]);
  const int64_t end =
      std::clamp<int64_t>(shard.end - first, begin, sizes_[tensor]);
  return {begin, end};
}

}  // namespace tf_fuse
