// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs a stage of an update, on whole variables or on rows (update_stage.h).

#include <cstring>
#include <utility>
#include <vector>

#include "update/append_flagged_rows.h"
#include "update/update_stage.h"
#include "update/update_threads.h"

namespace tf_fuse {

using tensorflow::DataTypeSize;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

BlockOperand Operand(const Tensor& tensor, int64_t size) {
  return {tensor.data(), tensor.NumElements() == 1 && size != 1};
}

absl::Status AllocateResults(OpKernelContext* ctx,
                             const CompiledUpdate& program,
                             std::vector<Tensor>* results,
                             ProgramMemory* memory) {
  for (size_t i = 0; i < results->size(); ++i) {
    absl::Status status = ctx->allocate_temp(program.result_types()[i],
                                             {program.size()}, &(*results)[i]);
    if (!status.ok()) return status;
    memory->results.push_back(static_cast<char*>((*results)[i].data()));
  }
  return absl::OkStatus();
}

void Repeat(const Tensor& row, Tensor* rows) {
  const int64_t bytes = row.TotalBytes();
  const int64_t count = rows->NumElements() / row.NumElements();
  char* to = static_cast<char*>(rows->data());
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * bytes, row.data(), bytes);
  }
}

void Gather(const Tensor& value, const Tensor& indices, int64_t row,
            Tensor* rows) {
  const int64_t bytes = row * DataTypeSize(value.dtype());
  const char* from = static_cast<const char*>(value.data());
  char* to = static_cast<char*>(rows->data());
  for (int64_t i = 0; i < indices.NumElements(); ++i) {
    std::memcpy(to + i * bytes, from + RowNumber(indices, i) * bytes, bytes);
  }
}

}  // namespace

absl::Status UpdateStage::Run(OpKernelContext* ctx, const Variables& variables,
                              StageInputs* inputs) const {
  return is_by_row() ? RunRows(ctx, variables, inputs)
                     : RunWhole(ctx, variables, inputs);
}

absl::Status UpdateStage::RunWhole(OpKernelContext* ctx,
                                   const Variables& variables,
                                   StageInputs* inputs) const {
  ProgramMemory memory;
  for (const int variable : message_.variables()) {
    char* data = static_cast<char*>(variables[variable]->tensor()->data());
    memory.variables.push_back({data, data});
  }
  for (const int input : message_.inputs()) {
    memory.inputs.push_back(Operand((*inputs)[input], program_->size()));
  }
  std::vector<Tensor> results(program_->result_types().size());
  absl::Status status = AllocateResults(ctx, *program_, &results, &memory);
  if (status.ok()) RunOnThreads(ctx, *program_, memory);
  if (!status.ok() || !message_.has_join()) return status;
  const v1::RowJoin& join = message_.join();
  Tensor values, numbers;
  status = JoinRows(ctx, results[0], join.rows(), (*inputs)[join.indices()],
                    (*inputs)[join.values()], &values, &numbers);
  if (!status.ok()) return status;
  inputs->Keep(std::move(values));
  inputs->Keep(std::move(numbers));
  return absl::OkStatus();
}

absl::Status UpdateStage::RunRows(OpKernelContext* ctx,
                                  const Variables& variables,
                                  StageInputs* inputs) const {
  // (A copy, which has the same memory: what is kept may move.)
  const Tensor indices = (*inputs)[message_.indices()];
  const int64_t row = RowElements(variables);
  std::vector<Tensor> results;
  if (program_ != nullptr) {
    absl::Status status = RunOnRows(ctx, variables, *inputs, row, &results);
    if (!status.ok()) return status;
  }
  for (const Scatter& scatter : scatters_) {
    const Tensor& values = scatter.value >= 0
                               ? results[scatter.value]
                               : (*inputs)[OtherIndex(scatter.value)];
    if (scatter.is_sum) {
      absl::Status status = KeepSums(ctx, variables, scatter, values, inputs);
      if (!status.ok()) return status;
      continue;
    }
    if (scatter.variable < 0) {
      inputs->Keep(values);
      continue;
    }
    if (row * indices.NumElements() == 0) continue;
    ScatterRows(scatter, values, indices, row,
                variables[scatter.variable]->tensor());
  }
  return absl::OkStatus();
}

absl::Status UpdateStage::KeepSums(OpKernelContext* ctx,
                                   const Variables& variables,
                                   const Scatter& scatter, const Tensor& values,
                                   StageInputs* inputs) const {
  const Tensor& like = *variables[RowVariable()]->tensor();
  Tensor sums;
  absl::Status status = ctx->allocate_temp(values.dtype(), like.shape(), &sums);
  if (!status.ok()) return status;
  // (Zeros of all types that are added.)
  std::memset(sums.data(), 0, sums.TotalBytes());
  const Tensor& indices = (*inputs)[message_.indices()];
  const int64_t row = RowElements(variables);
  if (row * indices.NumElements() > 0) {
    ScatterRows(scatter, values, indices, row, &sums);
  }
  inputs->Keep(std::move(sums));
  return absl::OkStatus();
}

absl::Status UpdateStage::RunOnRows(OpKernelContext* ctx,
                                    const Variables& variables,
                                    const StageInputs& inputs, int64_t row,
                                    std::vector<Tensor>* results) const {
  const Tensor& indices = inputs[message_.indices()];
  const int64_t size = row * indices.NumElements();
  std::vector<Tensor> gathered;
  for (const int variable : message_.gathered()) {
    const Tensor& value = *variables[variable]->tensor();
    gathered.emplace_back();
    absl::Status status =
        ctx->allocate_temp(value.dtype(), {size}, &gathered.back());
    if (!status.ok()) return status;
    Gather(value, indices, row, &gathered.back());
  }
  // (How many rows there are is new in each step.)
  v1::UpdateProgram message = message_.program();
  message.set_size(size);
  auto program = CompiledUpdate::Compile(message);
  if (!program.ok()) return program.status();
  ProgramMemory memory;
  std::vector<Tensor> repeated(message_.inputs_size());
  for (int i = 0; i < message_.inputs_size(); ++i) {
    const int input = message_.inputs(i);
    const Tensor* tensor =
        input < 0 ? &gathered[OtherIndex(input)] : &inputs[input];
    if (input >= 0 && tensor->NumElements() != size && IsOneRow(*tensor, row)) {
      absl::Status status =
          ctx->allocate_temp(tensor->dtype(), {size}, &repeated[i]);
      if (!status.ok()) return status;
      Repeat(*tensor, &repeated[i]);
      tensor = &repeated[i];
    }
    memory.inputs.push_back(Operand(*tensor, size));
  }
  results->resize(program->result_types().size());
  absl::Status status = AllocateResults(ctx, *program, results, &memory);
  if (status.ok()) RunOnThreads(ctx, *program, memory);
  return status;
}

// One row after the other: a number may be there more than once.
void UpdateStage::ScatterRows(const Scatter& scatter, const Tensor& values,
                              const Tensor& indices, int64_t row,
                              Tensor* variable) {
  const int64_t width = DataTypeSize(variable->dtype());
  const bool is_single =
      values.NumElements() == 1 && row * indices.NumElements() != 1;
  const BlockFunction function = scatter.function != nullptr
                                     ? scatter.function
                                     : CopyOf(static_cast<int>(width));
  const char* from = static_cast<const char*>(values.data());
  char* to = static_cast<char*>(variable->data());
  for (int64_t i = 0; i < indices.NumElements(); ++i) {
    char* old = to + RowNumber(indices, i) * row * width;
    const BlockOperand value = {is_single ? from : from + i * row * width,
                                is_single};
    const BlockOperand both[2] = {{old, false}, value};
    function(scatter.function != nullptr ? both : &value, old, row);
  }
}

}  // namespace tf_fuse
