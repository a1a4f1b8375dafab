// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/row_sum.h"

#include <string>

#include "tensorflow/core/framework/node_def_util.h"
#include "tf_fuse/v1/staged_update.pb.h"
#include "tf_fuse/v1/update.pb.h"

namespace tf_fuse {

using tensorflow::Node;

namespace {

// Finds the one input whose rows a stage adds to variables.
class StageReader {
 public:
  // `first` is the node's input that is number 0 of the operation's inputs.
  StageReader(const v1::UpdateStage& stage, int first,
              const std::function<bool(int input)>& is_scalar)
      : stage_(stage), first_(first), is_scalar_(is_scalar) {}

  RowSum Read() {
    RowSum sum;
    if (!stage_.is_by_row() || stage_.has_join() ||
        stage_.gathered_size() > 0 || stage_.scatters_size() == 0 ||
        stage_.program().variable_types_size() > 0) {
      return sum;
    }
    for (const v1::RowScatter& scatter : stage_.scatters()) {
      if (scatter.op() != "ResourceScatterAdd" &&
          scatter.op() != "ResourceScatterSub") {
        return sum;
      }
      int rows = -1;
      if (scatter.value() < 0) {
        rows = -1 - scatter.value();
      } else if (scatter.value() < stage_.program().results_size()) {
        rows = RowsOf(stage_.program().results(scatter.value()));
      }
      if (rows < 0 || (rows_ >= 0 && rows_ != rows)) return sum;
      rows_ = rows;
    }
    sum.ids = first_ + stage_.indices();
    sum.values = first_ + rows_;
    return sum;
  }

 private:
  // The operation's input that a value is, perhaps scaled; -1: it is another.
  int RowsOf(int value) {
    const int inputs = stage_.program().input_types_size();
    if (value < inputs) return InputOf(value);
    if (value - inputs >= stage_.program().steps_size()) return -1;
    const v1::UpdateStep& step = stage_.program().steps(value - inputs);
    const bool is_binary = step.inputs_size() == 2;
    if (step.op() == "Neg" || step.op() == "Identity") {
      return step.inputs_size() == 1 ? RowsOf(step.inputs(0)) : -1;
    }
    if (!is_binary) return -1;
    if ((step.op() == "Mul" || step.op() == "RealDiv") &&
        IsScalar(step.inputs(1))) {
      return RowsOf(step.inputs(0));
    }
    if (step.op() == "Mul" && IsScalar(step.inputs(0))) {
      return RowsOf(step.inputs(1));
    }
    return -1;
  }

  int InputOf(int value) const {
    return value < stage_.inputs_size() ? stage_.inputs(value) : -1;
  }

  bool IsScalar(int value) const {
    const int input =
        value < stage_.program().input_types_size() ? InputOf(value) : -1;
    return input >= 0 && is_scalar_(first_ + input);
  }

  const v1::UpdateStage& stage_;
  const int first_;
  const std::function<bool(int input)>& is_scalar_;
  int rows_ = -1;
};

RowSum OfElementwiseUpdate(const Node& node) {
  std::string serialized;
  int variables = 0;
  v1::UpdateProgram program;
  if (!TryGetNodeAttr(node.attrs(), "program", &serialized) ||
      !TryGetNodeAttr(node.attrs(), "N", &variables) ||
      !program.ParseFromString(serialized) || program.row_sums_size() != 1 ||
      !program.row_sums(0).op().empty()) {
    return {};
  }
  const v1::RowSum& sum = program.row_sums(0);
  return {variables + program.input_types_size() + sum.indices(),
          variables + sum.input()};
}

}  // namespace

RowSum FindRowSum(const Node& node,
                  const std::function<bool(int input)>& is_scalar) {
  const std::string& type = node.type_string();
  if (type == "ResourceScatterAdd" || type == "ResourceScatterSub") {
    return {/*ids=*/1, /*values=*/2};
  }
  if (type == "UnsortedSegmentSum") return {/*ids=*/1, /*values=*/0};
  if (type == "TfFuse>ElementwiseUpdate") return OfElementwiseUpdate(node);
  if (type != "TfFuse>StagedUpdate") return {};
  std::string serialized;
  int variables = 0;
  v1::StagedUpdate update;
  if (!TryGetNodeAttr(node.attrs(), "update", &serialized) ||
      !TryGetNodeAttr(node.attrs(), "N", &variables) ||
      !update.ParseFromString(serialized) || update.stages_size() != 1) {
    return {};
  }
  return StageReader(update.stages(0), variables, is_scalar).Read();
}

}  // namespace tf_fuse
