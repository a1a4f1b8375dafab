// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the numbers of rows, int32 or int64, and sorts rows by them.

#ifndef TF_FUSE_CC_UPDATE_ROW_NUMBERS_H_
#define TF_FUSE_CC_UPDATE_ROW_NUMBERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/util.h"

namespace tf_fuse {

// One of the rows' numbers, which are int32 or int64.
inline int64_t RowNumber(const tensorflow::Tensor& indices, int64_t i) {
  return indices.dtype() == tensorflow::DT_INT32
             ? static_cast<const int32_t*>(indices.data())[i]
             : static_cast<const int64_t*>(indices.data())[i];
}

// The rows of a tensor by where they go, as UnsortedSegmentSum takes them.
class SortedRows {
 public:
  struct Entry {
    int64_t row;       // Where it goes.
    int64_t position;  // Where it is.

    bool operator<(const Entry& other) const { return row < other.row; }
  };

  // Sorts rows by their numbers, each below `rows`. Those of equal numbers keep
  // their order. A negative number means nowhere, as in TensorFlow.
  //
  // Errors have the text of UnsortedSegmentSum.
  static absl::StatusOr<SortedRows> Sort(const tensorflow::Tensor& indices,
                                         int64_t rows) {
    SortedRows sorted;
    const int64_t count = indices.NumElements();
    sorted.entries_.reserve(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = RowNumber(indices, i);
      if (row < 0) continue;
      if (row >= rows) {
        return absl::InvalidArgumentError(absl::StrCat(
            "segment_ids", tensorflow::SliceDebugString(indices.shape(), i),
            " = ", row, " is out of range [0, ", rows, ")"));
      }
      sorted.entries_.push_back({row, i});
    }
    std::stable_sort(sorted.entries_.begin(), sorted.entries_.end());
    return sorted;
  }

  size_t size() const { return entries_.size(); }
  const Entry& operator[](size_t i) const { return entries_[i]; }

  // The first entry of `row` or of one after it.
  size_t FirstFrom(int64_t row) const {
    return std::lower_bound(entries_.begin(), entries_.end(), Entry{row, 0}) -
           entries_.begin();
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_ROW_NUMBERS_H_
