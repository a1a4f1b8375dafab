// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An update of a variable and its slots by a gradient that is of some rows:
// parts of it are on whole variables, and others on those rows. All of it is
// under one lock, and nothing is changed if anything is wrong.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tf_fuse/v1/staged_update.pb.h"
#include "update/block_ops.h"
#include "update/locked_variables.h"
#include "update/program.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeSize;
using tensorflow::DataTypeString;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

REGISTER_OP("TfFuse>StagedUpdate")
    .Input("variables: N * resource")
    .Input("inputs: Tin")
    .Input("begun: C * int64")
    .Attr("N: int >= 1")
    .Attr("Tin: list(type) >= 0")
    .Attr("update: string")
    .Attr("C: int >= 0 = 0")
    .Attr("subject: int = 0")
    .Attr("worker: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      return absl::OkStatus();
    })
    .Doc(R"doc(
Updates variables, whole and by rows, stage by stage, all under one lock.

variables: Handles of variables.
inputs: What the stages read: gradients, rates, numbers of rows.
begun: If the update is counted, what TfFuse>UpdateCount told when the step began.
update: A serialized tf_fuse.v1.StagedUpdate.
subject: Of an update that is counted, the variable that stands for all.
worker: The task in whose step it is.
)doc");

namespace {

bool Has(int index, int64_t count) { return index >= 0 && index < count; }

// An input by its number; -1 is the first one of the others.
int OtherIndex(int number) { return -1 - number; }

// What is done with the rows of a variable.
struct Scatter {
  int variable;
  int value;
  BlockFunction function;  // Null: the rows are replaced.
};

// One stage. `Check` and `Run` are called under the lock of its variables.
class Stage {
 public:
  // Fails if the stage names what is not there.
  static absl::StatusOr<Stage> Make(const v1::UpdateStage& message,
                                    int variables,
                                    const std::vector<DataType>& inputs) {
    Stage stage;
    stage.message_ = message;
    absl::Status status = stage.CheckProgram(variables, inputs);
    if (status.ok() && message.is_by_row()) {
      status = stage.CheckRows(variables, inputs);
    } else if (status.ok() &&
               (message.gathered_size() > 0 || message.scatters_size() > 0)) {
      status = Wrong("rows in a stage that is not by row");
    }
    if (!status.ok()) return status;
    return stage;
  }

  // The variables that it changes.
  std::vector<int> Changed() const {
    std::vector<int> changed;
    for (const Scatter& scatter : scatters_) {
      changed.push_back(scatter.variable);
    }
    for (int i = 0; i < message_.variables_size(); ++i) {
      if (program_->assigns(i)) changed.push_back(message_.variables(i));
    }
    return changed;
  }

  bool is_by_row() const { return message_.is_by_row(); }

  // Whether the values of variables and inputs have the sizes that it needs.
  absl::Status Check(const Variables& variables,
                     const OpInputList& inputs) const {
    if (is_by_row()) return CheckRowSizes(variables, inputs);
    for (int i = 0; i < message_.variables_size(); ++i) {
      const Tensor& value = *variables[message_.variables(i)]->tensor();
      if (value.dtype() != program_->variable_types()[i] ||
          value.NumElements() != program_->size()) {
        return Wrong(absl::StrCat("variable ", message_.variables(i),
                                  ", which is ", DataTypeString(value.dtype()),
                                  " of shape ", value.shape().DebugString(),
                                  ", in a stage of ",
                                  DataTypeString(program_->variable_types()[i]),
                                  " and ", program_->size(), " elements"));
      }
    }
    return CheckInputSizes(inputs, program_->size());
  }

  absl::Status Run(OpKernelContext* ctx, const Variables& variables,
                   const OpInputList& inputs) const {
    return is_by_row() ? RunRows(ctx, variables, inputs)
                       : RunWhole(ctx, variables, inputs);
  }

 private:
  Stage() = default;

  static absl::Status Wrong(const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("TfFuse>StagedUpdate has ", what));
  }

  absl::Status CheckProgram(int variables,
                            const std::vector<DataType>& inputs) {
    if (!message_.has_program()) {
      if (message_.is_by_row() && message_.inputs().empty() &&
          message_.variables().empty()) {
        return absl::OkStatus();
      }
      return Wrong("a stage without a program");
    }
    auto program = Program::Compile(message_.program());
    if (!program.ok()) return program.status();
    program_ = std::make_shared<Program>(*std::move(program));
    const size_t own = program_->variable_types().size();
    if (own != static_cast<size_t>(message_.variables_size()) ||
        (own > 0 && message_.is_by_row())) {
      return Wrong(absl::StrCat("a program of ", own,
                                " variables in a stage of ",
                                message_.variables_size()));
    }
    for (const int variable : message_.variables()) {
      if (!Has(variable, variables)) {
        return Wrong(absl::StrCat("variable ", variable, " of ", variables));
      }
    }
    if (program_->input_types().size() !=
        static_cast<size_t>(message_.inputs_size())) {
      return Wrong(absl::StrCat("a program of ", program_->input_types().size(),
                                " inputs in a stage of ",
                                message_.inputs_size()));
    }
    for (int i = 0; i < message_.inputs_size(); ++i) {
      const int input = message_.inputs(i);
      if (input < 0 && Has(OtherIndex(input), message_.gathered_size())) {
        continue;  // (Its type is the variable's, which is not known yet.)
      }
      if (!Has(input, inputs.size()) ||
          inputs[input] != program_->input_types()[i]) {
        return Wrong(absl::StrCat("input ", input, " of ", inputs.size(),
                                  ", or one of another type than ",
                                  DataTypeString(program_->input_types()[i])));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRows(int variables, const std::vector<DataType>& inputs) {
    if (!Has(message_.indices(), inputs.size()) ||
        (inputs[message_.indices()] != tensorflow::DT_INT32 &&
         inputs[message_.indices()] != tensorflow::DT_INT64)) {
      return Wrong(
          absl::StrCat("numbers of rows in input ", message_.indices()));
    }
    for (const int variable : message_.gathered()) {
      if (!Has(variable, variables)) {
        return Wrong(absl::StrCat("variable ", variable, " of ", variables));
      }
    }
    for (int i = 0; i < message_.gathered_size(); ++i) {
      // (What is read has a type, and rows that are checked.)
      const auto& read = message_.inputs();
      if (std::find(read.begin(), read.end(), -1 - i) == read.end()) {
        return Wrong(absl::StrCat("gathered rows of variable ",
                                  message_.gathered(i), " that nothing reads"));
      }
    }
    if (message_.scatters().empty()) return Wrong("rows that change nothing");
    for (const v1::RowScatter& scatter : message_.scatters()) {
      const size_t results =
          program_ == nullptr ? 0 : program_->result_types().size();
      const int value = scatter.value();
      const bool has_value = value >= 0 ? Has(value, results)
                                        : Has(OtherIndex(value), inputs.size());
      if (!Has(scatter.variable(), variables) || !has_value) {
        return Wrong(absl::StrCat("a scatter of value ", value, " to variable ",
                                  scatter.variable()));
      }
      const DataType type = value >= 0 ? program_->result_types()[value]
                                       : inputs[OtherIndex(value)];
      BlockFunction function = nullptr;
      if (scatter.op() != "ResourceScatterUpdate") {
        const char* op = scatter.op() == "ResourceScatterAdd"   ? "AddV2"
                         : scatter.op() == "ResourceScatterSub" ? "Sub"
                                                                : "";
        function = FindBlockOp(op, type, type).function;
        if (function == nullptr) {
          return Wrong(absl::StrCat("a scatter ", scatter.op(), " of ",
                                    DataTypeString(type)));
        }
      } else if (DataTypeSize(type) <= 0 || DataTypeSize(type) > 8) {
        return Wrong(absl::StrCat("a scatter of ", DataTypeString(type)));
      }
      scatters_.push_back({scatter.variable(), value, function});
      types_.push_back(type);
    }
    return absl::OkStatus();
  }

  // An input that has one row stands for all, as one of one element does.
  static bool IsOneRow(const Tensor& input, int64_t row) {
    return input.dims() > 0 && input.dim_size(0) == 1 &&
           input.NumElements() == row;
  }

  // `row` is how many elements one has; -1 of whole variables.
  absl::Status CheckInputSizes(const OpInputList& inputs, int64_t size,
                               int64_t row = -1) const {
    for (const int input : message_.inputs()) {
      if (input < 0) continue;
      const int64_t elements = inputs[input].NumElements();
      if (elements != size && elements != 1 && !IsOneRow(inputs[input], row)) {
        return Wrong(absl::StrCat("input ", input, " of shape ",
                                  inputs[input].shape().DebugString(),
                                  " in a stage of ", size, " elements"));
      }
    }
    return absl::OkStatus();
  }

  static int64_t Index(const Tensor& indices, int64_t i) {
    return indices.dtype() == tensorflow::DT_INT32
               ? static_cast<const int32_t*>(indices.data())[i]
               : static_cast<const int64_t*>(indices.data())[i];
  }

  absl::Status CheckRowSizes(const Variables& variables,
                             const OpInputList& inputs) const {
    const Tensor& indices = inputs[message_.indices()];
    const int64_t count = indices.NumElements();
    std::vector<std::pair<int, DataType>> used;
    for (size_t i = 0; i < scatters_.size(); ++i) {
      used.push_back({scatters_[i].variable, types_[i]});
    }
    for (int i = 0; i < message_.inputs_size(); ++i) {
      if (message_.inputs(i) < 0) {
        used.push_back({message_.gathered(OtherIndex(message_.inputs(i))),
                        program_->input_types()[i]});
      }
    }
    const int64_t row = RowElements(variables);
    for (const auto& [number, type] : used) {
      const Tensor& value = *variables[number]->tensor();
      if (value.dims() < 1 || value.dtype() != type ||
          value.NumElements() != row * value.dim_size(0)) {
        return Wrong(absl::StrCat(
            "variable ", number, ", which is ", DataTypeString(value.dtype()),
            " of shape ", value.shape().DebugString(), ", where rows of ", row,
            " ", DataTypeString(type), " are updated"));
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t index = Index(indices, i);
        if (index < 0 || index >= value.dim_size(0)) {
          return absl::InvalidArgumentError(
              absl::StrCat("indices[", i, "] = ", index, " is not in [0, ",
                           value.dim_size(0), ")"));
        }
      }
    }
    for (const Scatter& scatter : scatters_) {
      if (scatter.value >= 0) continue;
      const Tensor& value = inputs[OtherIndex(scatter.value)];
      // (As TensorFlow's kernels, which do not look at those of no rows.)
      const Tensor& variable = *variables[scatter.variable]->tensor();
      tensorflow::TensorShape expected = indices.shape();
      for (int i = 1; i < variable.dims(); ++i) {
        expected.AddDim(variable.dim_size(i));
      }
      if (count > 0 && value.dims() > 0 && value.shape() != expected) {
        return Wrong(absl::StrCat(
            "values of shape ", value.shape().DebugString(), " for ", count,
            " rows of ", row, " elements: expected ", expected.DebugString()));
      }
    }
    return CheckInputSizes(inputs, row * count, row);
  }

  int64_t RowElements(const Variables& variables) const {
    const Tensor& value = *variables[scatters_.front().variable]->tensor();
    if (value.dims() < 1 || value.dim_size(0) == 0) return 0;
    return value.NumElements() / value.dim_size(0);
  }

  static void RunProgram(OpKernelContext* ctx, const Program& program,
                         const ProgramMemory& memory) {
    const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
    const int64_t blocks =
        (program.size() + kBlockElements - 1) / kBlockElements;
    tensorflow::Shard(
        threads.num_threads, threads.workers, blocks,
        kBlockElements * program.cycles(),
        [&](int64_t begin, int64_t end) { program.Run(memory, begin, end); });
  }

  absl::Status RunWhole(OpKernelContext* ctx, const Variables& variables,
                        const OpInputList& inputs) const {
    ProgramMemory memory;
    for (const int variable : message_.variables()) {
      char* data = static_cast<char*>(variables[variable]->tensor()->data());
      memory.variables.push_back({data, data});
    }
    for (const int input : message_.inputs()) {
      memory.inputs.push_back(Operand(inputs[input], program_->size()));
    }
    std::vector<Tensor> results(program_->result_types().size());
    absl::Status status = AllocateResults(ctx, *program_, &results, &memory);
    if (status.ok()) RunProgram(ctx, *program_, memory);
    return status;
  }

  static BlockOperand Operand(const Tensor& tensor, int64_t size) {
    return {tensor.data(), tensor.NumElements() == 1 && size != 1};
  }

  static absl::Status AllocateResults(OpKernelContext* ctx,
                                      const Program& program,
                                      std::vector<Tensor>* results,
                                      ProgramMemory* memory) {
    for (size_t i = 0; i < results->size(); ++i) {
      absl::Status status = ctx->allocate_temp(
          program.result_types()[i], {program.size()}, &(*results)[i]);
      if (!status.ok()) return status;
      memory->results.push_back(static_cast<char*>((*results)[i].data()));
    }
    return absl::OkStatus();
  }

  absl::Status RunRows(OpKernelContext* ctx, const Variables& variables,
                       const OpInputList& inputs) const {
    const Tensor& indices = inputs[message_.indices()];
    const int64_t row = RowElements(variables);
    const int64_t size = row * indices.NumElements();
    if (size == 0) return absl::OkStatus();
    std::vector<Tensor> gathered, results;
    if (program_ != nullptr) {
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
      auto program = Program::Compile(message);
      if (!program.ok()) return program.status();
      ProgramMemory memory;
      std::vector<Tensor> repeated(message_.inputs_size());
      for (int i = 0; i < message_.inputs_size(); ++i) {
        const int input = message_.inputs(i);
        const Tensor* tensor =
            input < 0 ? &gathered[OtherIndex(input)] : &inputs[input];
        if (input >= 0 && tensor->NumElements() != size &&
            IsOneRow(*tensor, row)) {
          absl::Status status =
              ctx->allocate_temp(tensor->dtype(), {size}, &repeated[i]);
          if (!status.ok()) return status;
          Repeat(*tensor, &repeated[i]);
          tensor = &repeated[i];
        }
        memory.inputs.push_back(Operand(*tensor, size));
      }
      results.resize(program->result_types().size());
      absl::Status status = AllocateResults(ctx, *program, &results, &memory);
      if (!status.ok()) return status;
      RunProgram(ctx, *program, memory);
    }
    for (const Scatter& scatter : scatters_) {
      const Tensor& values = scatter.value >= 0
                                 ? results[scatter.value]
                                 : inputs[OtherIndex(scatter.value)];
      ScatterRows(scatter, values, indices, row,
                  variables[scatter.variable]->tensor());
    }
    return absl::OkStatus();
  }

  static void Repeat(const Tensor& row, Tensor* rows) {
    const int64_t bytes = row.TotalBytes();
    const int64_t count = rows->NumElements() / row.NumElements();
    char* to = static_cast<char*>(rows->data());
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * bytes, row.data(), bytes);
    }
  }

  static void Gather(const Tensor& value, const Tensor& indices, int64_t row,
                     Tensor* rows) {
    const int64_t bytes = row * DataTypeSize(value.dtype());
    const char* from = static_cast<const char*>(value.data());
    char* to = static_cast<char*>(rows->data());
    for (int64_t i = 0; i < indices.NumElements(); ++i) {
      std::memcpy(to + i * bytes, from + Index(indices, i) * bytes, bytes);
    }
  }

  // One row after the other: a number may be there more than once.
  static void ScatterRows(const Scatter& scatter, const Tensor& values,
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
      char* old = to + Index(indices, i) * row * width;
      const BlockOperand value = {is_single ? from : from + i * row * width,
                                  is_single};
      const BlockOperand both[2] = {{old, false}, value};
      function(scatter.function != nullptr ? both : &value, old, row);
    }
  }

  v1::UpdateStage message_;
  std::shared_ptr<Program> program_;
  std::vector<Scatter> scatters_;
  std::vector<DataType> types_;  // Of what is scattered.
};

class StagedUpdateOp : public OpKernel {
 public:
  explicit StagedUpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string serialized;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("update", &serialized));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &variables_));
    OP_REQUIRES_OK(ctx, counted_.Init(ctx, variables_));
    tensorflow::DataTypeVector types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tin", &types));
    v1::StagedUpdate message;
    OP_REQUIRES(ctx, message.ParseFromString(serialized),
                absl::InvalidArgumentError(
                    "TfFuse>StagedUpdate: the update does not parse"));
    const std::vector<DataType> inputs(types.begin(), types.end());
    changed_.resize(variables_, false);
    by_row_.resize(variables_, false);
    for (const v1::UpdateStage& one : message.stages()) {
      auto stage = Stage::Make(one, variables_, inputs);
      OP_REQUIRES_OK(ctx, stage.status());
      for (const int variable : stage->Changed()) {
        changed_[variable] = true;
        if (stage->is_by_row()) by_row_[variable] = true;
      }
      stages_.push_back(*std::move(stage));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList inputs;
    OP_REQUIRES_OK(ctx, ctx->input_list("inputs", &inputs));
    Variables variables;
    OP_REQUIRES_OK(ctx, LookUpVariables(ctx, variables_, &variables));
    const VariableLocks locks(variables);
    for (const auto& variable : variables) {
      OP_REQUIRES(
          ctx, variable->is_initialized,
          UnreadableVariable(variable->DebugString(), "It has no value."));
    }
    for (const Stage& stage : stages_) {
      OP_REQUIRES_OK(ctx, stage.Check(variables, inputs));
    }
    for (int i = 0; i < variables_; ++i) {
      OP_REQUIRES_OK(ctx, MakeOwn(ctx, i, *variables[i]));
    }
    for (const Stage& stage : stages_) {
      OP_REQUIRES_OK(ctx, stage.Run(ctx, variables, inputs));
    }
    counted_.Add(ctx, locks);
  }

 private:
  // Who has read the value keeps it as it was. As TensorFlow's kernels of rows
  // do, reads of such a variable copy it from then on.
  absl::Status MakeOwn(OpKernelContext* ctx, int index, Var& variable) const {
    if (by_row_[index]) variable.copy_on_read_mode.store(true);
    Tensor* value = variable.tensor();
    if (!changed_[index] || value->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    absl::Status status =
        ctx->allocate_temp(value->dtype(), value->shape(), &copy);
    if (!status.ok()) return status;
    std::memcpy(copy.data(), value->data(), value->TotalBytes());
    *value = copy;
    return absl::OkStatus();
  }

  int variables_ = 0;
  std::vector<Stage> stages_;
  std::vector<bool> changed_, by_row_;
  CountedUpdate counted_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>StagedUpdate").Device(tensorflow::DEVICE_CPU), StagedUpdateOp);

}  // namespace

}  // namespace tf_fuse
