// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The operations of the option `fuse_lookups_unique`, on the task that has the
// ids of a lookup. passes/lookups/unique_rewrite.cc makes them. Where no id
// repeats, all of them hand their input on.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfFuse>UniqueIds")
    .Input("ids: T")
    .Output("unique: T")
    .Output("places: int32")
    .Attr("T: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(c->NumElements(c->input(0))));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the ids that a lookup needs, each once.

ids: Of any shape.
unique: A vector of them, in the order in which they come first.
places: For each id, its place in `unique`.
)doc");

REGISTER_OP("TfFuse>PlaceRows")
    .Input("rows: T")
    .Input("places: int32")
    .Input("ids: Tids")
    .Output("placed: T")
    .Attr("T: type")
    .Attr("Tids: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows, row, placed;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &rows));
      TF_RETURN_IF_ERROR(c->Subshape(rows, 1, &row));
      TF_RETURN_IF_ERROR(c->Concatenate(c->input(2), row, &placed));
      c->set_output(0, placed);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts a row of each id to all its places.

rows: One row for each of some ids that differ.
places: As of TfFuse>UniqueIds.
ids: All ids; only their shape is used.
placed: For each of `ids`, its row.
)doc");

REGISTER_OP("TfFuse>SumRows")
    .Input("values: T")
    .Input("places: int32")
    .Input("ids: Tids")
    .Output("sums: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("Tids: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle sums = c->UnknownShape();
      if (c->RankKnown(c->input(2))) {
        ShapeHandle values, row;
        const int rank = c->Rank(c->input(2));
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), rank, &values));
        TF_RETURN_IF_ERROR(c->Subshape(values, rank, &row));
        TF_RETURN_IF_ERROR(c->Concatenate(
            c->Vector(InferenceContext::kUnknownDim), row, &sums));
      }
      c->set_output(0, sums);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds the rows of equal ids, in their order.

values: For each of `ids`, a row.
places: As of TfFuse>UniqueIds.
ids: All ids; only their shape is used.
sums: One row for each id that differs. It is its first row if it has one only.
)doc");

namespace {

// Gives each id the number of those before it that differ.
template <typename T>
class Numbers {
 public:
  explicit Numbers(int64_t ids) {
    while ((int64_t{1} << bits_) < 2 * ids) ++bits_;
    slots_.assign(size_t{1} << bits_, -1);
  }

  // The number of an id; `unique` has the ids before it.
  int32_t Of(T id, std::vector<T>* unique) {
    // (The upper bits of a product by 2^64 over the golden ratio: Knuth, "The
    // Art of Computer Programming", volume 3, 6.4.)
    size_t at =
        (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u) >> (64 - bits_);
    while (slots_[at] >= 0 && (*unique)[slots_[at]] != id) {
      at = (at + 1) & (slots_.size() - 1);
    }
    if (slots_[at] < 0) {
      slots_[at] = static_cast<int32_t>(unique->size());
      unique->push_back(id);
    }
    return slots_[at];
  }

 private:
  int bits_ = 4;
  std::vector<int32_t> slots_;  // Numbers of ids; -1: free.
};

template <typename T>
class UniqueIdsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    const int64_t count = ids.NumElements();
    OP_REQUIRES(ctx, count <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError(absl::StrCat(
                    count, " ids in one lookup, at most ",
                    std::numeric_limits<int32_t>::max(), " are possible")));
    Tensor* places = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({count}), &places));
    const T* id = ids.flat<T>().data();
    int32_t* place = places->flat<int32_t>().data();
    std::vector<T> unique;
    unique.reserve(count);
    Numbers<T> numbers(count);
    for (int64_t i = 0; i < count; ++i) place[i] = numbers.Of(id[i], &unique);
    const auto found = static_cast<int64_t>(unique.size());
    if (found == count) {
      Tensor same;
      OP_REQUIRES(ctx, same.CopyFrom(ids, TensorShape({count})),
                  absl::InternalError("ids cannot become a vector"));
      ctx->set_output(0, same);
      return;
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({found}), &output));
    std::copy(unique.begin(), unique.end(), output->flat<T>().data());
  }
};

absl::Status CheckPlaces(const Tensor& places, const Tensor& ids) {
  if (places.dims() == 1 && places.NumElements() == ids.NumElements()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("places of shape ", places.shape().DebugString(),
                   " for ids of shape ", ids.shape().DebugString()));
}

// Whether the first place is 0, the next one 1, and so on: no id repeats.
bool IsInOrder(const int32_t* places, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (places[i] != i) return false;
  }
  return true;
}

class PlaceRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    const Tensor& places = ctx->input(1);
    const Tensor& ids = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckPlaces(places, ids));
    OP_REQUIRES(
        ctx, rows.dims() > 0 && tensorflow::DataTypeCanUseMemcpy(rows.dtype()),
        absl::InvalidArgumentError(absl::StrCat(
            "rows of type ", tensorflow::DataTypeString(rows.dtype()),
            " and shape ", rows.shape().DebugString(), " cannot be placed")));
    const int64_t found = rows.dim_size(0);
    const int64_t count = places.NumElements();
    TensorShape shape = ids.shape();
    for (int i = 1; i < rows.dims(); ++i) {
      OP_REQUIRES_OK(ctx, shape.AddDimWithStatus(rows.dim_size(i)));
    }
    const int32_t* place = places.flat<int32_t>().data();
    if (found == count && IsInOrder(place, count)) {
      Tensor same;
      OP_REQUIRES(ctx, same.CopyFrom(rows, shape),
                  absl::InternalError("rows cannot get the shape of ids"));
      ctx->set_output(0, same);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(ctx, place[i] >= 0 && place[i] < found,
                  absl::InvalidArgumentError(absl::StrCat(
                      "a lookup has returned ", found,
                      " rows, and there is none for place ", place[i])));
    }
    Tensor* placed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &placed));
    if (shape.num_elements() == 0) return;
    const int64_t bytes = static_cast<int64_t>(rows.TotalBytes()) / found;
    const char* from = rows.tensor_data().data();
    char* to = const_cast<char*>(placed->tensor_data().data());
    for (int64_t i = 0; i < count; ++i, to += bytes) {
      std::memcpy(to, from + place[i] * bytes, bytes);
    }
  }
};

template <typename T>
class SumRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& values = ctx->input(0);
    const Tensor& places = ctx->input(1);
    const Tensor& ids = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckPlaces(places, ids));
    OP_REQUIRES(ctx, HasRowOfEach(values, ids),
                absl::InvalidArgumentError(absl::StrCat(
                    "gradients of shape ", values.shape().DebugString(),
                    " for ids of shape ", ids.shape().DebugString())));
    const int64_t count = places.NumElements();
    const int32_t* place = places.flat<int32_t>().data();
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(
          ctx, place[i] >= 0 && place[i] <= found,
          absl::InvalidArgumentError(absl::StrCat("place ", place[i], " after ",
                                                  found, " ids that differ")));
      if (place[i] == found) ++found;
    }
    TensorShape shape({found});
    for (int i = ids.dims(); i < values.dims(); ++i) {
      OP_REQUIRES_OK(ctx, shape.AddDimWithStatus(values.dim_size(i)));
    }
    if (found == count) {
      Tensor same;
      OP_REQUIRES(ctx, same.CopyFrom(values, shape),
                  absl::InternalError("rows cannot become a list"));
      ctx->set_output(0, same);
      return;
    }
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    if (shape.num_elements() == 0) return;
    Add(values.flat<T>().data(), place, count, values.NumElements() / count,
        sums->flat<T>().data());
  }

 private:
  static bool HasRowOfEach(const Tensor& values, const Tensor& ids) {
    if (values.dims() < ids.dims()) return false;
    for (int i = 0; i < ids.dims(); ++i) {
      if (values.dim_size(i) != ids.dim_size(i)) return false;
    }
    return true;
  }

  static void Add(const T* from, const int32_t* place, int64_t count,
                  int64_t width, T* sums) {
    int32_t found = 0;
    for (int64_t i = 0; i < count; ++i, from += width) {
      T* __restrict to = sums + place[i] * width;
      const T* __restrict row = from;
      if (place[i] == found) {
        ++found;
        std::copy(row, row + width, to);
      } else {
        for (int64_t j = 0; j < width; ++j) to[j] = to[j] + row[j];
      }
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfFuse>UniqueIds")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int32_t>("T"),
                        UniqueIdsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("TfFuse>UniqueIds")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int64_t>("T"),
                        UniqueIdsOp<int64_t>);

REGISTER_KERNEL_BUILDER(Name("TfFuse>PlaceRows").Device(tensorflow::DEVICE_CPU),
                        PlaceRowsOp);

#define TF_FUSE_REGISTER(type)                                \
  REGISTER_KERNEL_BUILDER(Name("TfFuse>SumRows")              \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<type>("T"),     \
                          SumRowsOp<type>)
TF_FUSE_REGISTER(Eigen::half);
TF_FUSE_REGISTER(tensorflow::bfloat16);
TF_FUSE_REGISTER(float);
TF_FUSE_REGISTER(double);
TF_FUSE_REGISTER(int32_t);
TF_FUSE_REGISTER(int64_t);
#undef TF_FUSE_REGISTER

}  // namespace

}  // namespace tf_fuse
