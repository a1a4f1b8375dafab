// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The op TfFuse>OperationGroup: runs small operations in turn, with
// TensorFlow's kernels. passes/fuse_recv/operations_rewrite.cc makes it.

#include "tensorflow/core/framework/op.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/profiler/lib/traceme.h"
#include "update/scatter_rows.h"

namespace tf_fuse {

using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;

// Stateful and of communication, as its sends are: see _FuseRecv.
REGISTER_OP("TfFuse>OperationGroup")
    .Input("inputs: Tinputs")
    .Output("outputs: Tresults")
    .Attr("Tinputs: list(type) >= 0")
    .Attr("Tresults: list(type) >= 0")
    .Attr("body: string")
    .Attr("results: list(string) >= 0")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Runs operations that wait for the same tensors, one after another.

inputs: What the operations take from others.
outputs: What others take from the operations.
body: A serialized GraphDef: the operations in an order in which they can run.
  An input is "name:output" of an operation before, "^name" of one to wait for,
  or ":i", the input number i of this one.
results: Of each output, "name:output" of the operation that makes it.
)doc");

namespace {

// Groups with less data than this for each thread run on one: it takes as long
// to wake another one as to copy some 100 KB.
constexpr int64_t kBytesPerThread = 256 << 10;

// The output of an operation before (`operation` >= 0), or an input of the
// group.
struct Source {
  int operation = -1;
  int index = 0;
};

struct Operation {
  std::unique_ptr<OpKernel> kernel;
  std::vector<Source> inputs;
  // 1: adds rows; -1: subtracts rows; 0: anything else.
  int scatter = 0;
  std::vector<int> results;  // Per output, the group's; -1: of nobody else.
};

absl::Status Malformed(const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("TfFuse>OperationGroup: ", why));
}

// Reads the body.
class BodyReader {
 public:
  explicit BodyReader(OpKernelConstruction* ctx) : ctx_(ctx) {}

  absl::Status Read(std::vector<Operation>* operations,
                    std::vector<std::vector<int>>* components) {
    std::string bytes;
    absl::Status status = ctx_->GetAttr("body", &bytes);
    if (!status.ok()) return status;
    tensorflow::GraphDef body;
    if (!body.ParseFromString(bytes)) return Malformed("body is not a graph");
    parents_.resize(body.node_size());
    std::iota(parents_.begin(), parents_.end(), 0);
    for (const NodeDef& def : body.node()) {
      Operation operation;
      status = Add(def, &operation);
      if (!status.ok()) return status;
      operations->push_back(std::move(operation));
    }
    std::vector<std::string> results;
    status = ctx_->GetAttr("results", &results);
    if (!status.ok()) return status;
    if (static_cast<int>(results.size()) != ctx_->num_outputs()) {
      return Malformed(absl::StrCat(results.size(), " results for ",
                                    ctx_->num_outputs(), " outputs"));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      Source source;
      status = Parse(results[i], &source);
      if (!status.ok()) return status;
      if (source.operation < 0) return Malformed("an input is a result");
      auto& of_operation = (*operations)[source.operation].results;
      if (of_operation[source.index] >= 0) {
        return Malformed(absl::StrCat(results[i], " is twice a result"));
      }
      of_operation[source.index] = static_cast<int>(i);
    }
    std::map<int, std::vector<int>> by_root;
    for (int i = 0; i < body.node_size(); ++i) by_root[Root(i)].push_back(i);
    for (auto& [_, of_root] : by_root) {
      components->push_back(std::move(of_root));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Add(const NodeDef& def, Operation* operation) {
    const int number = static_cast<int>(outputs_.size());
    NodeDef plain = def;
    plain.clear_input();
    for (const std::string& input : def.input()) {
      Source source;
      const bool is_control = absl::StartsWith(input, "^");
      const absl::Status status =
          is_control ? Parse(absl::StrCat(input.substr(1), ":0"), &source)
                     : Parse(input, &source);
      if (!status.ok()) return status;
      if (source.operation >= 0) {
        Join(source.operation, number);
      } else if (ctx_->input_type(source.index) == tensorflow::DT_RESOURCE) {
        // What has the same variable keeps its order.
        const auto [it, is_new] = first_with_.emplace(source.index, number);
        if (!is_new) Join(it->second, number);
      }
      if (is_control) continue;
      plain.add_input("in");
      operation->inputs.push_back(source);
    }
    const tensorflow::OpDef* op_def = nullptr;
    absl::Status status =
        tensorflow::OpRegistry::Global()->LookUpOpDef(def.op(), &op_def);
    if (!status.ok()) return status;
    AddDefaultsToNodeDef(*op_def, &plain);
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    status = tensorflow::NodeProperties::CreateFromNodeDef(
        plain, tensorflow::OpRegistry::Global(), &properties);
    if (!status.ok()) return status;
    OpKernel* kernel = nullptr;
    auto* device = static_cast<tensorflow::DeviceBase*>(ctx_->device());
    status = tensorflow::CreateOpKernel(
        ctx_->device_type(), device,
        device->GetAllocator(AllocatorAttributes()), ctx_->function_library(),
        ctx_->resource_manager(), properties, ctx_->graph_def_version(),
        &kernel);
    if (!status.ok()) return status;
    operation->kernel.reset(kernel);
    if (kernel->AsAsync() != nullptr) {
      return Malformed(absl::StrCat("operation ", def.name(), " (", def.op(),
                                    ") is asynchronous"));
    }
    for (size_t i = 0; i < operation->inputs.size(); ++i) {
      const Source& source = operation->inputs[i];
      const auto type = source.operation < 0
                            ? ctx_->input_type(source.index)
                            : types_[source.operation][source.index];
      if (type != kernel->input_type(static_cast<int>(i))) {
        return Malformed(absl::StrCat(
            "input ", i, " of ", def.name(), " is ", DataTypeString(type),
            ", expected ",
            DataTypeString(kernel->input_type(static_cast<int>(i)))));
      }
    }
    if (def.op() == "ResourceScatterAdd") operation->scatter = 1;
    if (def.op() == "ResourceScatterSub") operation->scatter = -1;
    operation->results.assign(kernel->num_outputs(), -1);
    outputs_.push_back(kernel->num_outputs());
    types_.push_back(kernel->output_types());
    if (!numbers_.emplace(def.name(), number).second) {
      return Malformed(absl::StrCat("two operations are named ", def.name()));
    }
    return absl::OkStatus();
  }

  // Of "name:output" or ":input".
  absl::Status Parse(const std::string& text, Source* source) const {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(text.substr(colon + 1), &source->index)) {
      return Malformed(absl::StrCat("'", text, "' is not NAME:NUMBER"));
    }
    int limit = ctx_->num_inputs();
    if (colon > 0) {
      const auto it = numbers_.find(text.substr(0, colon));
      if (it == numbers_.end()) {
        return Malformed(absl::StrCat("no operation before has ", text));
      }
      source->operation = it->second;
      limit = std::max(outputs_[it->second], 1);  // (A control input: 0.)
    }
    if (source->index < 0 || source->index >= limit) {
      return Malformed(absl::StrCat("'", text, "': there are ", limit));
    }
    return absl::OkStatus();
  }

  int Root(int i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  void Join(int a, int b) { parents_[Root(b)] = Root(a); }

  OpKernelConstruction* const ctx_;
  std::map<std::string, int> numbers_;
  std::vector<int> outputs_;
  std::vector<tensorflow::DataTypeVector> types_;
  std::map<int, int> first_with_;  // The first operation with an input.
  std::vector<int> parents_;       // Of operations that are connected.
};

// What one thread needs to run operations of a group.
class Runner {
 public:
  Runner(OpKernelContext* ctx, const std::vector<Operation>& operations)
      : ctx_(ctx), operations_(operations), values_(operations.size()) {
    params_.step_id = ctx->step_id();
    params_.start_time_usecs = ctx->start_time_usecs();
    params_.deadline = ctx->deadline();
    params_.device = ctx->device();
    params_.resource_manager = ctx->resource_manager();
    params_.step_container = ctx->step_container();
    params_.rendezvous = ctx->rendezvous();
    params_.collective_executor = ctx->collective_executor();
    params_.session_config = ctx->session_config();
    params_.session_state = ctx->session_state();
    params_.session_handle = ctx->session_handle();
    params_.session_metadata = ctx->session_metadata();
    params_.tensor_store = ctx->tensor_store();
    params_.cancellation_manager = ctx->cancellation_manager();
    params_.op_device_context = ctx->op_device_context();
    params_.frame_iter = ctx->frame_iter();
    params_.function_library = ctx->function_library();
    params_.runner = ctx->runner();
    params_.run_all_kernels_inline = ctx->run_all_kernels_inline();
    params_.slice_reader_cache = ctx->slice_reader_cache();
    params_.coordination_service_agent = ctx->coordination_service_agent();
  }

  // Of all outputs so far.
  int64_t bytes() const { return bytes_; }

  absl::Status Run(absl::Span<const int> component) {
    for (const int i : component) {
      if (ctx_->cancellation_manager() != nullptr &&
          ctx_->cancellation_manager()->IsCancelled()) {
        return absl::CancelledError("the step was cancelled");
      }
      const absl::Status status = RunOne(i);
      if (!status.ok()) return status;
    }
    for (const int i : component) values_[i].clear();
    return absl::OkStatus();
  }

 private:
  absl::Status RunOne(int number) {
    const Operation& operation = operations_[number];
    OpKernel* kernel = operation.kernel.get();
    tensorflow::profiler::TraceMe trace([kernel] {
      return absl::StrCat(kernel->name(), ":", kernel->type_string());
    });
    // Copies: a kernel writes its result over an input that nobody else holds.
    inputs_.clear();
    for (const Source& source : operation.inputs) {
      inputs_.push_back(source.operation < 0
                            ? ctx_->input(source.index)
                            : values_[source.operation][source.index]);
    }
    input_values_.clear();
    for (Tensor& input : inputs_) input_values_.emplace_back(&input);
    const int outputs = kernel->num_outputs();
    attributes_.resize(std::max(
        {inputs_.size(), attributes_.size(), static_cast<size_t>(outputs)}));
    never_forward_.resize(attributes_.size(),
                          OpKernelContext::Params::kNeverForward);
    params_.op_kernel = kernel;
    params_.inputs = input_values_;
    params_.input_alloc_attrs =
        absl::MakeConstSpan(attributes_).first(inputs_.size());
    params_.output_attr_array = attributes_.data();
    params_.forward_from_array = never_forward_.data();
    OpKernelContext ctx(&params_, outputs);
    if (operation.scatter == 0 || !ScatterRows(&ctx, operation.scatter < 0)) {
      kernel->Compute(&ctx);
    }
    if (!ctx.status().ok()) {
      return tensorflow::AttachDef(ctx.status(), kernel->def());
    }
    std::vector<Tensor>& values = values_[number];
    values.reserve(outputs);
    for (int i = 0; i < outputs; ++i) {
      const TensorValue value = ctx.release_output(i);
      if (value.tensor == nullptr) {
        return absl::InternalError(
            absl::StrCat("missing output ", i, " of ", kernel->name()));
      }
      if (operation.results[i] >= 0) {
        ctx_->set_output(operation.results[i], *value.tensor);
      }
      if (kernel->output_type(i) != tensorflow::DT_RESOURCE) {
        bytes_ += value.tensor->TotalBytes();
      }
      values.push_back(std::move(*value.tensor));
      delete value.tensor;
    }
    return absl::OkStatus();
  }

  OpKernelContext* const ctx_;
  const std::vector<Operation>& operations_;
  std::vector<std::vector<Tensor>> values_;  // Of each operation's outputs.
  OpKernelContext::Params params_;
  std::vector<Tensor> inputs_;
  std::vector<TensorValue> input_values_;
  std::vector<AllocatorAttributes> attributes_;
  std::vector<int> never_forward_;
  int64_t bytes_ = 0;
};

// Several threads that run components of a group.
struct Threads {
  std::atomic<size_t> next{0};  // Component.
  std::atomic<int> running{0};
  std::atomic<int64_t> bytes{0};  // Of all outputs.
  absl::Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
};

class OperationGroupOp : public AsyncOpKernel {
 public:
  explicit OperationGroupOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, BodyReader(ctx).Read(&operations_, &components_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const int count = ThreadsFor(ctx);
    auto threads = std::make_shared<Threads>();
    threads->running = count;
    const auto run = [this, ctx, threads, done = std::move(done)] {
      const absl::Status status = RunComponents(ctx, threads.get());
      if (!status.ok()) {
        threads->next = components_.size();
        absl::MutexLock lock(&threads->mu);
        threads->status.Update(status);
      }
      if (threads->running.fetch_sub(1) != 1) return;
      output_bytes_ = threads->bytes.load();
      {
        absl::MutexLock lock(&threads->mu);
        if (!threads->status.ok()) ctx->SetStatus(threads->status);
      }
      done();
    };
    for (int i = 1; i < count; ++i) (*ctx->runner())(run);
    run();
  }

 private:
  int ThreadsFor(OpKernelContext* ctx) const {
    int64_t bytes = output_bytes_;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (ctx->input_dtype(i) == tensorflow::DT_RESOURCE) continue;
      bytes += ctx->input(i).TotalBytes();
    }
    const int64_t most = std::min<int64_t>(
        components_.size(),
        ctx->device()->tensorflow_cpu_worker_threads()->num_threads);
    return static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1,
                                                std::max<int64_t>(most, 1)));
  }

  absl::Status RunComponents(OpKernelContext* ctx, Threads* threads) const {
    Runner runner(ctx, operations_);
    absl::Status status;
    while (status.ok()) {
      const size_t component = threads->next.fetch_add(1);
      if (component >= components_.size()) break;
      status = runner.Run(components_[component]);
    }
    threads->bytes += runner.bytes();
    return status;
  }

  std::vector<Operation> operations_;
  // Operations that need each other, or have the same variable, in order.
  std::vector<std::vector<int>> components_;
  std::atomic<int64_t> output_bytes_{0};  // When it ran last.
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>OperationGroup").Device(tensorflow::DEVICE_CPU),
    OperationGroupOp);

}  // namespace

}  // namespace tf_fuse
