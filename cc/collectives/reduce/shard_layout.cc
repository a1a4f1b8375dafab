// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/shard_layout.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/common_runtime/base_collective_executor.h"

namespace tf_fuse {

namespace {

// Of one tensor with so many elements, the chunks from `first` to `last`.
ShardRange ChunksOf(int64_t elements, int64_t element_bytes, int members,
                    int first, int last) {
  if (elements == 0) return {};
  // As the ring with one subdivision, which CollectiveReduceV2 has by default.
  const int64_t step = tensorflow::CollectiveAdapter::AlignedChunkElts(
      element_bytes, elements, members);
  return {std::min(elements, first * step),
          std::min(elements, (last + 1) * step)};
}

}  // namespace

ShardLayout::ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes,
                         int members, bool packed, int groups)
    : sizes_(std::move(sizes)),
      element_bytes_(element_bytes),
      members_(members),
      packed_(packed),
      groups_(groups) {
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
      groups_(1),
      bounds_(std::move(bounds)) {}

ShardRange ShardLayout::Of(size_t tensor, int member) const {
  if (!bounds_.empty()) {
    const size_t first = tensor * (members_ + 1) + member;
    return {bounds_[first], bounds_[first + 1]};
  }
  const int first = place(member) * groups_;
  return Chunks(tensor, first, first + groups_ - 1);
}

ShardRange ShardLayout::SummedBy(size_t tensor, int member) const {
  if (!bounds_.empty()) return Of(tensor, member);
  const int chunk = FirstTermOf(member);
  return Chunks(tensor, chunk, chunk);
}

int ShardLayout::FirstTermOf(int member) const {
  return place(member) * groups_ + group(member);
}

std::vector<int> ShardLayout::GroupOf(int member) const {
  const int size = members_ / groups_;
  std::vector<int> found;
  for (int i = 0; i < size; ++i) {
    found.push_back(group(member) * size + (place(member) + i) % size);
  }
  return found;
}

std::vector<int> ShardLayout::HoldersOf(int member) const {
  const int size = members_ / groups_;
  std::vector<int> found;
  for (int i = 0; i < groups_; ++i) {
    found.push_back((member + i * size) % members_);
  }
  return found;
}

ShardRange ShardLayout::Chunks(size_t tensor, int first, int last) const {
  if (!packed_) {
    return ChunksOf(sizes_[tensor], element_bytes_, members_, first, last);
  }
  const ShardRange chunks =
      ChunksOf(begins_.back(), element_bytes_, members_, first, last);
  const int64_t start = begins_[tensor];
  // An empty range begins and ends at the same place, never backwards.
  const int64_t begin =
      std::clamp<int64_t>(chunks.begin - start, 0, sizes_[tensor]);
  const int64_t end =
      std::clamp<int64_t>(chunks.end - start, begin, sizes_[tensor]);
  return {begin, end};
}

}  // namespace tf_fuse
