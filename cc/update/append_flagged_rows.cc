// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/append_flagged_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "update/row_numbers.h"

namespace tf_fuse {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

absl::Status WrongRows(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("rows are joined to ", what));
}

absl::Status CheckJoin(const Tensor& flags, int64_t rows, const Tensor& indices,
                       const Tensor& values) {
  if (flags.dtype() != tensorflow::DT_BOOL || rows < 0 ||
      (rows == 0 ? flags.NumElements() != 0
                 : flags.NumElements() % rows != 0)) {
    return WrongRows(absl::StrCat("those of flags of shape ",
                                  flags.shape().DebugString(), " for ", rows,
                                  " rows"));
  }
  const int64_t row = rows == 0 ? 0 : flags.NumElements() / rows;
  if (rows > 0 && values.NumElements() != row * indices.NumElements()) {
    return WrongRows(
        absl::StrCat("values of shape ", values.shape().DebugString(), " for ",
                     indices.NumElements(), " rows of ", row, " elements"));
  }
  for (int64_t i = 0; i < indices.NumElements(); ++i) {
    const int64_t index = RowNumber(indices, i);
    if (index < 0 || index >= rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "indices[", i, "] = ", index, " is not in [0, ", rows, ")"));
    }
  }
  return absl::OkStatus();
}

// The numbers of rows that have a flag; without one, none.
std::vector<int64_t> Flagged(const Tensor& flags, int64_t rows) {
  std::vector<int64_t> found;
  if (rows == 0) return found;
  const bool* data = static_cast<const bool*>(flags.data());
  const int64_t row = flags.NumElements() / rows;
  if (row == 0 ||
      std::memchr(data, 1, static_cast<size_t>(flags.NumElements())) ==
          nullptr) {
    return found;
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (std::memchr(data + i * row, 1, row) != nullptr) found.push_back(i);
  }
  return found;
}

absl::Status AllocateIndices(OpKernelContext* ctx, int64_t count,
                             Tensor* indices) {
  return ctx->allocate_temp(tensorflow::DT_INT64, {count}, indices);
}

// The values of joined rows, where there are more or fewer than before.
absl::Status Spread(OpKernelContext* ctx, int64_t rows, int64_t row,
                    const Tensor& indices, const Tensor& values,
                    const std::vector<int64_t>& joined, Tensor* spread) {
  const int64_t count = indices.NumElements();
  // (Sums, as TensorFlow scatters them, of numbers that may be too large.)
  std::vector<uint32_t> places(rows, 0);
  for (int64_t i = 0; i < count; ++i) {
    places[RowNumber(indices, i)] += static_cast<uint32_t>(i + 1);
  }
  absl::Status status = ctx->allocate_temp(
      values.dtype(), {static_cast<int64_t>(joined.size()), row}, spread);
  if (!status.ok()) return status;
  const int64_t bytes = row * tensorflow::DataTypeSize(values.dtype());
  const char* from = static_cast<const char*>(values.data());
  char* to = static_cast<char*>(spread->data());
  for (size_t i = 0; i < joined.size(); ++i, to += bytes) {
    const auto place = static_cast<int32_t>(places[joined[i]]);
    // (Without a row there is none of zeros either.)
    const int64_t end = count == 0 ? 0 : count + 1;
    if (place < 0 || place >= end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "indices[", i, "] = ", place, " is not in [0, ", end,
          "): a row's number is there more than once, or there is no row, and "
          "the divisor has zeros or NaNs"));
    }
    if (place == 0) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, from + (place - 1) * bytes, bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JoinRows(OpKernelContext* ctx, const Tensor& flags, int64_t rows,
                      const Tensor& indices, const Tensor& values,
                      Tensor* joined_values, Tensor* joined_indices) {
  absl::Status status = CheckJoin(flags, rows, indices, values);
  if (!status.ok()) return status;
  const int64_t count = indices.NumElements();
  std::vector<int64_t> joined = Flagged(flags, rows);
  const bool is_joined = !joined.empty();
  for (int64_t i = 0; i < count; ++i) {
    joined.push_back(RowNumber(indices, i));
  }
  if (is_joined) {
    std::sort(joined.begin(), joined.end());
    joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
  }
  const auto size = static_cast<int64_t>(joined.size());
  status = AllocateIndices(ctx, size, joined_indices);
  if (!status.ok()) return status;
  std::copy(joined.begin(), joined.end(),
            static_cast<int64_t*>(joined_indices->data()));
  if (size != count) {
    return Spread(ctx, rows, flags.NumElements() / rows, indices, values,
                  joined, joined_values);
  }
  *joined_values = values;
  return absl::OkStatus();
}

}  // namespace tf_fuse
