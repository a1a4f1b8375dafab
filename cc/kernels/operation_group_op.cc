// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The op TfFuse>OperationGroup: runs small operations in turn, with
// TensorFlow's kernels. passes/fuse_recv/operations_rewrite.cc makes it.

#include "tensorflow/core/framework/op.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/gather_rows.h"
#include "kernels/operation_group_body.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/profiler/lib/traceme.h"
#include "transport/message/joint_send.h"
#include "update/scatter_rows.h"

namespace tf_fuse {

using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
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
  or ":i", the input number i of this one. Those _Send that name one joint send
  send all their tensors at once, when the last of them is there.
results: Of each output, "name:output" of the operation that makes it.
)doc");

namespace {

// Groups with less data than this for each thread run on one: it takes as long
// to wake another one as to copy some 100 KB.
constexpr int64_t kBytesPerThread = 256 << 10;

bool TakeShortcut(Shortcut shortcut, OpKernelContext* ctx) {
  switch (shortcut) {
    case Shortcut::kAddRows:
      return ScatterRows(ctx, /*subtract=*/false);
    case Shortcut::kSubtractRows:
      return ScatterRows(ctx, /*subtract=*/true);
    case Shortcut::kGatherRows:
      return GatherRows(ctx);
    case Shortcut::kNone:
      return false;
  }
  return false;
}

// The name of the first variable that an operation has; empty if it has none.
std::string VariableName(OpKernelContext* ctx) {
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    if (ctx->input_dtype(i) != tensorflow::DT_RESOURCE) continue;
    const tensorflow::ResourceHandle& handle =
        tensorflow::HandleFromInput(ctx, i);
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    if (!LookupResource(ctx, handle, &variable).ok()) continue;
    if (!handle.IsRefCounting()) return handle.name();
    // "NAME/0", with the name that the user gave.
    const std::string name = variable->MakeRefCountingHandleName(0);
    return name.substr(0, name.rfind('/'));
  }
  return "";
}

// The error of an operation, which names itself and its variable.
absl::Status ErrorOf(OpKernelContext* ctx) {
  absl::Status status = ctx->status();
  const std::string name = VariableName(ctx);
  if (!name.empty()) {
    status = tensorflow::errors::CreateWithUpdatedMessage(
        status, absl::StrCat(status.message(), " (variable '", name, "')"));
  }
  return tensorflow::AttachDef(status, ctx->op_kernel().def());
}

// The joint sends of one run of a group, which its threads share.
class JointSends {
 public:
  explicit JointSends(const std::vector<JointSendKey>& keys) : keys_(keys) {
    for (const JointSendKey& key : keys) {
      sends_.push_back(std::make_unique<Send>(key.tensors));
    }
  }

  // Sends all tensors if this one was the last that was missing.
  absl::Status Add(OpKernelContext* ctx, int number, int place, Tensor tensor) {
    Send& send = *sends_[number];
    send.tensors[place] = std::move(tensor);
    if (send.missing.fetch_sub(1) != 1) return absl::OkStatus();
    const JointSendKey& key = keys_[number];
    tensorflow::profiler::TraceMe trace([&key] {
      return absl::StrCat("_Send of ", key.tensors, " tensors:_Send");
    });
    if (ctx->rendezvous() == nullptr) {
      return absl::InternalError(absl::StrCat(
          "no rendezvous for the tensors that are sent to ", key.recv_device));
    }
    tensorflow::Rendezvous::ParsedKey parsed;
    const absl::Status status = tensorflow::Rendezvous::ParseKey(
        tensorflow::Rendezvous::CreateKey(
            key.send_device, key.send_device_incarnation, key.recv_device,
            key.tensor_name, ctx->frame_iter()),
        &parsed);
    if (!status.ok()) return status;
    tensorflow::Rendezvous::Args args;
    args.device_context = ctx->op_device_context();
    return ctx->rendezvous()->Send(
        parsed, args, MakeJointSend(std::move(send.tensors)), false);
  }

 private:
  struct Send {
    explicit Send(int count) : tensors(count), missing(count) {}
    std::vector<Tensor> tensors;
    std::atomic<int> missing;
  };

  const std::vector<JointSendKey>& keys_;
  std::vector<std::unique_ptr<Send>> sends_;
};

// What one thread needs to run operations of a group.
class Runner {
 public:
  Runner(OpKernelContext* ctx, const std::vector<GroupedOperation>& operations,
         JointSends* joint_sends)
      : ctx_(ctx),
        operations_(operations),
        joint_sends_(joint_sends),
        values_(operations.size()) {
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
      const absl::Status status =
          operations_[i].joint_send < 0 ? RunOne(i) : Send(operations_[i]);
      if (!status.ok()) return status;
    }
    for (const int i : component) values_[i].clear();
    return absl::OkStatus();
  }

 private:
  const Tensor& Value(const OperationSource& source) const {
    return source.operation < 0 ? ctx_->input(source.index)
                                : values_[source.operation][source.index];
  }

  absl::Status Send(const GroupedOperation& operation) {
    return joint_sends_->Add(ctx_, operation.joint_send, operation.place,
                             Value(operation.inputs[0]));
  }

  absl::Status RunOne(int number) {
    const GroupedOperation& operation = operations_[number];
    OpKernel* kernel = operation.kernel.get();
    tensorflow::profiler::TraceMe trace([kernel] {
      return absl::StrCat(kernel->name(), ":", kernel->type_string());
    });
    // Copies, so that no kernel writes its result over one of them, which it
    // does if nobody else holds the input.
    inputs_.clear();
    for (const OperationSource& source : operation.inputs) {
      inputs_.push_back(Value(source));
    }
    input_values_.clear();
    for (Tensor& input : inputs_) input_values_.emplace_back(&input);
    const int outputs = kernel->num_outputs();
    attributes_.resize(std::max(
        {inputs_.size(), attributes_.size(), static_cast<size_t>(outputs)}));
    params_.op_kernel = kernel;
    params_.inputs = input_values_;
    params_.input_alloc_attrs =
        absl::MakeConstSpan(attributes_).first(inputs_.size());
    params_.output_attr_array = attributes_.data();
    OpKernelContext ctx(&params_, outputs);
    if (!TakeShortcut(operation.shortcut, &ctx)) kernel->Compute(&ctx);
    if (!ctx.status().ok()) return ErrorOf(&ctx);
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
  const std::vector<GroupedOperation>& operations_;
  JointSends* const joint_sends_;
  std::vector<std::vector<Tensor>> values_;  // Of each operation's outputs.
  OpKernelContext::Params params_;
  std::vector<Tensor> inputs_;
  std::vector<TensorValue> input_values_;
  std::vector<AllocatorAttributes> attributes_;
  int64_t bytes_ = 0;
};

// Several threads that run components of a group.
struct Threads {
  explicit Threads(const std::vector<JointSendKey>& keys) : joint_sends(keys) {}

  JointSends joint_sends;
  std::atomic<size_t> next{0};  // Component.
  std::atomic<int> running{0};
  std::atomic<int64_t> bytes{0};  // Of all outputs.
  absl::Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
};

class OperationGroupOp : public AsyncOpKernel {
 public:
  explicit OperationGroupOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadOperationGroup(ctx, &body_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const int count = ThreadsFor(ctx);
    auto threads = std::make_shared<Threads>(body_.joint_sends);
    threads->running = count;
    const auto run = [this, ctx, threads, done = std::move(done)] {
      const absl::Status status = RunComponents(ctx, threads.get());
      if (!status.ok()) {
        threads->next = body_.components.size();
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
        body_.components.size(),
        ctx->device()->tensorflow_cpu_worker_threads()->num_threads);
    return static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1,
                                                std::max<int64_t>(most, 1)));
  }

  absl::Status RunComponents(OpKernelContext* ctx, Threads* threads) const {
    Runner runner(ctx, body_.operations, &threads->joint_sends);
    absl::Status status;
    while (status.ok()) {
      const size_t component = threads->next.fetch_add(1);
      if (component >= body_.components.size()) break;
      status = runner.Run(body_.components[component]);
    }
    threads->bytes += runner.bytes();
    return status;
  }

  GroupBody body_;
  std::atomic<int64_t> output_bytes_{0};  // When it ran last.
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>OperationGroup").Device(tensorflow::DEVICE_CPU),
    OperationGroupOp);

}  // namespace

}  // namespace tf_fuse
