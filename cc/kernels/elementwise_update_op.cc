// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An optimizer's update of a variable and its slots, in one pass over memory
// and under one lock: to other steps it has happened, or not.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_fuse/v1/update.pb.h"
#include "update/locked_variables.h"
#include "update/row_numbers.h"
#include "update/update_program.h"
#include "update/update_threads.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

namespace {

absl::Status InferResults(tensorflow::shape_inference::InferenceContext* c) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  absl::Status status = c->GetAttr("shapes", &shapes);
  if (!status.ok()) return status;
  if (shapes.size() != static_cast<size_t>(c->num_outputs())) {
    return absl::InvalidArgumentError(
        absl::StrCat("TfFuse>ElementwiseUpdate: ", c->num_outputs(),
                     " results, but ", shapes.size(), " shapes"));
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    status = c->MakeShapeFromPartialTensorShape(shapes[i], &shape);
    if (!status.ok()) return status;
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfFuse>ElementwiseUpdate")
    .Input("variables: N * resource")
    .Input("inputs: Tin")
    .Input("begun: C * int64")
    .Output("results: Tout")
    .Attr("N: int >= 0")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("shapes: list(shape) >= 0")
    .Attr("program: string")
    .Attr("C: int >= 0 = 0")
    .Attr("subject: int = 0")
    .Attr("worker: string = ''")
    .SetIsStateful()
    .SetShapeFn(InferResults)
    .Doc(R"doc(
Computes element by element, and reads and assigns variables, all under one lock.

variables: Handles of variables of `size` elements each.
inputs: Tensors of `size` elements, or of one that stands for all, or rows; then the vectors
  that number rows.
begun: If the update is counted, what TfFuse>UpdateCount told when the step began.
results: What the program returns, of `size` elements.
shapes: Of the results.
program: A serialized tf_fuse.v1.UpdateProgram, which has `size`.
subject: Of an update that is counted, the variable that stands for all.
worker: The task in whose step it is.
)doc");

namespace {

class ElementwiseUpdateOp : public OpKernel {
 public:
  explicit ElementwiseUpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string serialized;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("program", &serialized));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shapes", &shapes_));
    v1::UpdateProgram message;
    OP_REQUIRES(ctx, message.ParseFromString(serialized),
                absl::InvalidArgumentError(
                    "TfFuse>ElementwiseUpdate: the program does not parse"));
    auto program = CompiledUpdate::Compile(message);
    OP_REQUIRES_OK(ctx, program.status());
    program_ = std::make_unique<CompiledUpdate>(*std::move(program));
    OP_REQUIRES_OK(ctx, CheckSignature(ctx));
    const int variables = static_cast<int>(program_->variable_types().size());
    OP_REQUIRES_OK(ctx, counted_.Init(ctx, variables));
  }

  void Compute(OpKernelContext* ctx) override {
    ProgramMemory memory;
    OP_REQUIRES_OK(ctx, GetInputs(ctx, &memory));
    Variables variables;
    const int count = static_cast<int>(program_->variable_types().size());
    OP_REQUIRES_OK(ctx, LookUpVariables(ctx, count, &variables));
    const VariableLocks locks(variables);
    std::vector<Tensor> after(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(ctx, Check(i, *variables[i]));
      Tensor* before = variables[i]->tensor();
      char* old = static_cast<char*>(before->data());
      // A reader of the old value keeps it.
      if (program_->assigns(i) && !before->RefCountIsOne()) {
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(before->dtype(), before->shape(),
                                               &after[i]));
        memory.variables.push_back({old, static_cast<char*>(after[i].data())});
      } else {
        memory.variables.push_back({old, old});
      }
    }
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      Tensor* result = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shapes_[i], &result));
      memory.results.push_back(static_cast<char*>(result->data()));
    }
    RunOnThreads(ctx, *program_, memory);
    for (size_t i = 0; i < variables.size(); ++i) {
      const VariableMemory& moved = memory.variables[i];
      if (moved.after != moved.before) *variables[i]->tensor() = after[i];
    }
    counted_.Add(ctx, locks);
  }

 private:
  absl::Status CheckSignature(OpKernelConstruction* ctx) const {
    int variables = 0;
    tensorflow::DataTypeVector inputs, results;
    absl::Status status = ctx->GetAttr("N", &variables);
    status.Update(ctx->GetAttr("Tin", &inputs));
    status.Update(ctx->GetAttr("Tout", &results));
    if (!status.ok()) return status;
    const auto same = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    if (static_cast<size_t>(variables) != program_->variable_types().size() ||
        !same(inputs, InputTypes()) ||
        !same(results, program_->result_types()) ||
        results.size() != shapes_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "TfFuse>ElementwiseUpdate: the program is of ",
          program_->variable_types().size(), " variables, inputs of ",
          DataTypes(InputTypes()), " and results of ",
          DataTypes(program_->result_types()), "; the operation has ",
          variables, ", ", DataTypes(inputs), " and ", DataTypes(results),
          " of ", shapes_.size(), " shapes"));
    }
    for (const TensorShape& shape : shapes_) {
      if (shape.num_elements() != program_->size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "TfFuse>ElementwiseUpdate: a result of shape ", shape.DebugString(),
            ", but ", program_->size(), " elements"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<DataType> InputTypes() const {
    std::vector<DataType> types = program_->input_types();
    const auto& indices = program_->index_types();
    types.insert(types.end(), indices.begin(), indices.end());
    return types;
  }

  template <typename Types>
  static std::string DataTypes(const Types& types) {
    std::string text = "[";
    for (const DataType type : types) {
      absl::StrAppend(&text, text.size() > 1 ? ", " : "", DataTypeString(type));
    }
    return text + "]";
  }

  absl::Status GetInputs(OpKernelContext* ctx, ProgramMemory* memory) const {
    OpInputList inputs;
    absl::Status status = ctx->input_list("inputs", &inputs);
    if (!status.ok()) return status;
    const int count = static_cast<int>(program_->input_types().size());
    for (int i = 0; i < count; ++i) {
      const int at = program_->IndicesOf(i);
      if (at >= 0) status.Update(CheckStart(inputs[i], inputs[count + at]));
    }
    if (!status.ok()) return status;
    for (int i = count; i < inputs.size(); ++i) {
      auto sorted = SortedRows::Sort(inputs[i], program_->rows());
      if (!sorted.ok()) return sorted.status();
      memory->indices.push_back(*std::move(sorted));
    }
    for (int i = 0; i < count; ++i) {
      const Tensor& input = inputs[i];
      const int64_t elements = input.NumElements();
      if (const int at = program_->IndicesOf(i); at >= 0) {
        status = CheckRows(input, inputs[count + at]);
        if (!status.ok()) return status;
        memory->inputs.push_back({input.data(), false});
        continue;
      }
      if (elements != program_->size() && elements != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(name(), ": input ", i, " has the shape ",
                         input.shape().DebugString(), ", but the update is of ",
                         program_->size(), " elements"));
      }
      memory->inputs.push_back(
          {input.data(), elements == 1 && program_->size() != 1});
    }
    return absl::OkStatus();
  }

  // (As UnsortedSegmentSum does, before it looks at the numbers.)
  static absl::Status CheckStart(const Tensor& rows, const Tensor& indices) {
    if (!tensorflow::TensorShapeUtils::StartsWith(rows.shape(),
                                                  indices.shape())) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.shape = ", rows.shape().DebugString(),
                       " does not start with segment_ids.shape = ",
                       indices.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRows(const Tensor& rows, const Tensor& indices) const {
    const int64_t width = program_->size() / program_->rows();
    if (rows.NumElements() != indices.NumElements() * width) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(), ": ", indices.NumElements(), " rows of a tensor of shape ",
          rows.shape().DebugString(), ", but the update is of ",
          program_->rows(), " rows with together ", program_->size(),
          " elements"));
    }
    return absl::OkStatus();
  }

  absl::Status Check(int index, Var& variable) const {
    const Tensor& value = *variable.tensor();
    if (!variable.is_initialized) {
      return UnreadableVariable(variable.DebugString(), "It has no value.");
    }
    if (value.dtype() != program_->variable_types()[index] ||
        value.NumElements() != program_->size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(), ": variable ", index, " is ", DataTypeString(value.dtype()),
          " of shape ", value.shape().DebugString(), ", but the update is of ",
          DataTypeString(program_->variable_types()[index]), " and ",
          program_->size(), " elements"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<CompiledUpdate> program_;
  std::vector<TensorShape> shapes_;
  CountedUpdate counted_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>ElementwiseUpdate").Device(tensorflow::DEVICE_CPU),
    ElementwiseUpdateOp);

}  // namespace

}  // namespace tf_fuse
