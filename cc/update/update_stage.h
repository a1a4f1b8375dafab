// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One stage of TfFuse>StagedUpdate: on whole variables, or on rows of them.

#ifndef TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_
#define TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_fuse/v1/staged_update.pb.h"
#include "update/block_ops.h"
#include "update/locked_variables.h"
#include "update/program.h"

namespace tf_fuse {

// `Check` and `Run` are called under the lock of its variables.
class UpdateStage {
 public:
  // Fails if the stage names what is not there. `variables` is how many the
  // operation has, `inputs` are the types of what it reads beside them.
  static absl::StatusOr<UpdateStage> Make(
      const v1::UpdateStage& message, int variables,
      const std::vector<tensorflow::DataType>& inputs);

  // The variables that it changes.
  std::vector<int> Changed() const;

  bool is_by_row() const { return message_.is_by_row(); }

  // Whether the values of variables and inputs have the sizes that it needs.
  absl::Status Check(const Variables& variables,
                     const tensorflow::OpInputList& inputs) const;

  absl::Status Run(tensorflow::OpKernelContext* ctx, const Variables& variables,
                   const tensorflow::OpInputList& inputs) const;

 private:
  // What is done with the rows of a variable.
  struct Scatter {
    int variable;
    int value;
    BlockFunction function;  // Null: the rows are replaced.
  };

  UpdateStage() = default;

  absl::Status CheckProgram(int variables,
                            const std::vector<tensorflow::DataType>& inputs);
  absl::Status CheckProgramInputs(
      const std::vector<tensorflow::DataType>& inputs) const;
  absl::Status CheckRows(int variables,
                         const std::vector<tensorflow::DataType>& inputs);
  absl::Status AddScatter(const v1::RowScatter& scatter, int variables,
                          const std::vector<tensorflow::DataType>& inputs);
  // `row` is how many elements one has; -1 of whole variables.
  absl::Status CheckInputSizes(const tensorflow::OpInputList& inputs,
                               int64_t size, int64_t row = -1) const;
  absl::Status CheckRowSizes(const Variables& variables,
                             const tensorflow::OpInputList& inputs) const;
  absl::Status CheckRowValues(const Variables& variables,
                              const tensorflow::OpInputList& inputs) const;

  // Of the variables whose rows it changes.
  int64_t RowElements(const Variables& variables) const;
  absl::Status RunWhole(tensorflow::OpKernelContext* ctx,
                        const Variables& variables,
                        const tensorflow::OpInputList& inputs) const;
  absl::Status RunRows(tensorflow::OpKernelContext* ctx,
                       const Variables& variables,
                       const tensorflow::OpInputList& inputs) const;
  // The program on `size` elements of rows.
  absl::Status RunOnRows(tensorflow::OpKernelContext* ctx,
                         const Variables& variables,
                         const tensorflow::OpInputList& inputs, int64_t row,
                         std::vector<tensorflow::Tensor>* results) const;
  static void ScatterRows(const Scatter& scatter,
                          const tensorflow::Tensor& values,
                          const tensorflow::Tensor& indices, int64_t row,
                          tensorflow::Tensor* variable);

  v1::UpdateStage message_;
  std::shared_ptr<Program> program_;  // Null: rows are scattered as they come.
  std::vector<Scatter> scatters_;
  std::vector<tensorflow::DataType> types_;  // Of what is scattered.
};

// One of the rows' numbers, which are int32 or int64.
int64_t RowNumber(const tensorflow::Tensor& indices, int64_t i);

// An input that has one row stands for all, as one of one element does.
bool IsOneRow(const tensorflow::Tensor& input, int64_t row);

// An input of the operation by its number in a stage, where -1 is the first one
// of the others.
inline int OtherIndex(int number) { return -1 - number; }

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_
