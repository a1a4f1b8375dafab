// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which elements of which tensor belong to which member of a group, in
// reduce-scatter and all-gather. It is the layout of TensorFlow's ring, so both
// together are its all-reduce, to the last bit.

#ifndef TF_FUSE_CC_COLLECTIVES_SHARD_LAYOUT_H_
#define TF_FUSE_CC_COLLECTIVES_SHARD_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_fuse {

// Elements of a tensor; perhaps none.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class ShardLayout {
 public:
  // Of tensors with so many elements each. Each is cut by itself, or, if they
  // are `packed`, all as one, in which they follow each other.
  ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes, int members,
              bool packed);

  // Of tensors of which the caller says what is whose: of each in turn, where
  // the members' parts begin, by rank, and where the last one ends.
  ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes, int members,
              std::vector<int64_t> bounds);

  // Of tensor `tensor`, what is the member's.
  ShardRange Of(size_t tensor, int member) const;

  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t element_bytes() const { return element_bytes_; }
  bool packed() const { return packed_; }
  // Empty if the ring says what is whose.
  const std::vector<int64_t>& bounds() const { return bounds_; }

 private:
  const std::vector<int64_t> sizes_;
  const int64_t element_bytes_;
  const int members_;
  const bool packed_;
  const std::vector<int64_t> bounds_;
  std::vector<int64_t> begins_;  // Of tensors in the pack.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_SHARD_LAYOUT_H_
