// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs two tasks in one process for tests of the transport: real rendezvous,
// real workers, and between them no network but a function call that the test
// may change. No server is started, and no graph is run.

#ifndef TF_FUSE_CC_TESTING_LOOPBACK_TASKS_H_
#define TF_FUSE_CC_TESTING_LOOPBACK_TASKS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/fuse_worker.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_util.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/local_rendezvous.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "transport/fuse_rendezvous.h"

namespace tf_fuse {
namespace testing {

// A CPU whose incarnation is the same in every run.
class HostCpu : public tensorflow::Device {
 public:
  HostCpu(const std::string& task, uint64_t incarnation)
      : Device(tensorflow::Env::Default(), Attributes(task, incarnation)) {}
  absl::Status Sync() override { return absl::OkStatus(); }
  tensorflow::Allocator* GetAllocator(
      tensorflow::AllocatorAttributes) override {
    return tensorflow::cpu_allocator();
  }

 private:
  static tensorflow::DeviceAttributes Attributes(const std::string& task,
                                                 uint64_t incarnation) {
    tensorflow::DeviceAttributes attributes;
    attributes.set_name(task + "/device:CPU:0");
    attributes.set_device_type("CPU");
    attributes.set_incarnation(incarnation);
    return attributes;
  }
};

// gRPC's functions are not exported by TensorFlow, so a ByteBuffer can be made
// and filled, but not destroyed: TensorFlow empties it, and it is used again.
class Answer {
 public:
  Answer() : buffer_(Buffers::Get()->Take()) {}
  ~Answer() {
    Empty();
    Buffers::Get()->Give(buffer_);
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  ::grpc::ByteBuffer* buffer() { return buffer_; }
  // Gives back the memory of what is in it, as gRPC does with what was sent.
  void Empty() {
    if (buffer_->Valid()) {
      tsl::GrpcMaybeUnparseProto(std::string(), buffer_);
    }
  }
  // The tensor in a RecvTensorResponse; false if there is none.
  bool Read(tensorflow::Device* device, tensorflow::Tensor* tensor,
            bool* is_dead) {
    tensorflow::TensorResponse response;
    response.InitAlloc(device, tensorflow::AllocatorAttributes());
    if (!tensorflow::GrpcMaybeParseTensorResponse(buffer_, &response)) {
      return false;
    }
    *tensor = response.tensor();
    *is_dead = response.metadata().is_dead();
    return true;
  }

 private:
  // As many as were ever in use at once.
  class Buffers {
   public:
    ::grpc::ByteBuffer* Take() {
      absl::MutexLock lock(&mu_);
      if (free_.empty()) {
        return new (
            ::operator new(sizeof(::grpc::ByteBuffer)))::grpc::ByteBuffer;
      }
      ::grpc::ByteBuffer* buffer = free_.back();
      free_.pop_back();
      return buffer;
    }
    void Give(::grpc::ByteBuffer* buffer) {
      absl::MutexLock lock(&mu_);
      free_.push_back(buffer);
    }
    static Buffers* Get() {
      static Buffers* buffers = new Buffers;
      return buffers;
    }

   private:
    absl::Mutex mu_;
    std::vector<::grpc::ByteBuffer*> free_ ABSL_GUARDED_BY(mu_);
  };

  ::grpc::ByteBuffer* const buffer_;
};

// Makes the table of a task's steps.
using MakeMgr =
    std::unique_ptr<FuseRendezvousMgr> (*)(const tensorflow::WorkerEnv*);
inline std::unique_ptr<FuseRendezvousMgr> MakeFuseRendezvousMgr(
    const tensorflow::WorkerEnv* env) {
  return std::make_unique<FuseRendezvousMgr>(env);
}

// One task: a CPU, its rendezvous, and the worker that serves them.
class Task {
 public:
  // `workers` leads to the other tasks.
  Task(const std::string& name, uint64_t incarnation, int threads,
       std::unique_ptr<tensorflow::WorkerCacheInterface> workers,
       MakeMgr make_mgr = &MakeFuseRendezvousMgr)
      : name_(name),
        device_mgr_(std::make_unique<HostCpu>(name, incarnation)),
        pool_(tensorflow::Env::Default(), "loopback", threads) {
    env_.env = tensorflow::Env::Default();
    env_.device_mgr = &device_mgr_;
    env_.compute_pool = &pool_;
    rendezvous_mgr_ = make_mgr(&env_);
    env_.rendezvous_mgr = rendezvous_mgr_.get();
    session_mgr_ = std::make_unique<tensorflow::SessionMgr>(
        &env_, name, std::move(workers),
        [](const tensorflow::ServerDef&, tensorflow::WorkerCacheInterface**) {
          return absl::UnimplementedError("loopback");
        },
        nullptr);
    env_.session_mgr = session_mgr_.get();
    worker_ = std::make_unique<FuseWorker>(&env_, tensorflow::ConfigProto());
  }

  const std::string& name() const { return name_; }
  std::string device_name() const { return name_ + "/device:CPU:0"; }
  tensorflow::Device* device() { return device_mgr_.HostCPU(); }
  tensorflow::WorkerEnv* env() { return &env_; }
  FuseWorker* worker() { return worker_.get(); }
  tensorflow::thread::ThreadPool* pool() { return &pool_; }

  tsl::core::RefCountPtr<FuseRendezvous> Step(int64_t id) {
    auto found = rendezvous_mgr_->Find(id);
    return tsl::core::RefCountPtr<FuseRendezvous>(
        tensorflow::down_cast<FuseRendezvous*>(found.release()));
  }
  // The step runs from here on, and is kept as its executors would keep it.
  absl::Status Begin(int64_t id) {
    auto step = Step(id);
    const absl::Status status =
        step->Initialize(session_mgr_->LegacySession().get());
    absl::MutexLock lock(&mu_);
    running_[id] = std::move(step);
    return status;
  }
  // Ends it as its client does; one that did not begin, too.
  void End(int64_t id) {
    rendezvous_mgr_->Cleanup(id);
    tsl::core::RefCountPtr<FuseRendezvous>
        ended;  // Destroyed without the lock.
    absl::MutexLock lock(&mu_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    ended = std::move(found->second);
    running_.erase(found);
  }

 private:
  const std::string name_;
  tensorflow::WorkerEnv env_;
  tensorflow::StaticDeviceMgr device_mgr_;
  tensorflow::thread::ThreadPool pool_;
  std::unique_ptr<FuseRendezvousMgr> rendezvous_mgr_;
  std::unique_ptr<tensorflow::SessionMgr> session_mgr_;
  std::unique_ptr<FuseWorker> worker_;
  absl::Mutex mu_;
  std::map<int64_t, tsl::core::RefCountPtr<FuseRendezvous>> running_
      ABSL_GUARDED_BY(mu_);
};

// Where the network would be. All requests go to `sender`.
class Loopback : public tensorflow::Worker {
 public:
  // Changes a good answer on its way: the bytes of its tensor, or its status.
  using Tamper = std::function<void(std::string* bytes, absl::Status* status)>;

  explicit Loopback(Task* sender) : Worker(sender->env()), sender_(sender) {}

  // Not while there are calls.
  void set_tamper(Tamper tamper) { tamper_ = std::move(tamper); }
  // False: a single receive whose receiver has gone stays with the sender.
  void set_cancels_singles(bool cancels) { cancels_singles_ = cancels; }
  // True: a call that is cancelled ends at once, as with gRPC, whatever the
  // sender does. (TensorFlow's does not answer a single receive that comes
  // after its step's end, and hears of no cancellation before its handler
  // runs.)
  void set_ends_cancelled(bool ends) { ends_cancelled_ = ends; }

  void RecvTensorAsync(tensorflow::CallOptions* options,
                       const tensorflow::RecvTensorRequest* request,
                       tensorflow::TensorResponse* response,
                       tensorflow::StatusCallback done) override {
    auto call = std::make_shared<Call>();
    call->request = *request;
    call->receiver = options;
    call->response = response;
    call->done = std::move(done);
    if (cancels_singles_ || request->has_transport_options()) {
      options->SetCancelCallback([this, call] { Cancel(call); });
    }
    sender_->worker()->GrpcRecvTensorAsync(
        &call->options, &call->request, call->answer.buffer(),
        [this, call](const absl::Status& served) {
          if (const auto done = TakeDone(call.get())) {
            done(Deliver(call.get(), served));
          }
        });
  }

 private:
  struct Call {
    // The sender's.
    tensorflow::CallOptions options;
    tensorflow::RecvTensorRequest request;
    Answer answer;
    // The receiver's: gone once `ended`.
    tensorflow::CallOptions* receiver;
    tensorflow::TensorResponse* response;
    tensorflow::StatusCallback done;
    std::atomic<bool> ended{false};
  };

  // Null if the call has ended.
  static tensorflow::StatusCallback TakeDone(Call* call) {
    if (call->ended.exchange(true)) return nullptr;
    call->receiver->ClearCancelCallback();
    return std::move(call->done);
  }

  void Cancel(const std::shared_ptr<Call>& call) {
    call->options.StartCancel();
    if (!ends_cancelled_) return;
    // We are called with the lock held that ClearCancelCallback() takes.
    sender_->pool()->Schedule([call] {
      if (const auto done = TakeDone(call.get())) {
        done(absl::CancelledError("cancelled by the receiver"));
      }
    });
  }

  absl::Status Deliver(Call* call, absl::Status status) {
    if (tamper_ != nullptr && status.ok()) {
      tensorflow::RecvTensorResponse message;
      tsl::GrpcMaybeParseProto(call->answer.buffer(), &message);
      tensorflow::TensorProto* tensor = message.mutable_tensor();
      tamper_(tensor->mutable_tensor_content(), &status);
      if (tensor->dtype() == tensorflow::DT_UINT8 &&
          tensor->tensor_shape().dim_size() == 1) {
        tensor->mutable_tensor_shape()->mutable_dim(0)->set_size(
            static_cast<int64_t>(tensor->tensor_content().size()));
      }
      tsl::GrpcMaybeUnparseProto(message, call->answer.buffer());
    }
    if (status.ok() && !tensorflow::GrpcMaybeParseTensorResponse(
                           call->answer.buffer(), call->response)) {
      status = absl::InternalError("could not parse rpc response");
    }
    return status;
  }

  Task* const sender_;
  Tamper tamper_;
  bool cancels_singles_ = true;
  bool ends_cancelled_ = false;
};

// Every task is reached over the one `wire`; none is, without one.
class LoopbackWorkers : public tensorflow::WorkerCacheInterface {
 public:
  explicit LoopbackWorkers(Loopback* wire = nullptr) : wire_(wire) {}

  // Before the first step begins.
  void set_wire(Loopback* wire) { wire_ = wire; }

  void ListWorkers(std::vector<std::string>*) const override {}
  void ListWorkersInJob(const std::string&,
                        std::vector<std::string>*) const override {}
  tensorflow::WorkerInterface* GetOrCreateWorker(const std::string&) override {
    return wire_;
  }
  void ReleaseWorker(const std::string&,
                     tensorflow::WorkerInterface*) override {}
  bool GetDeviceLocalityNonBlocking(const std::string&,
                                    tensorflow::DeviceLocality*) override {
    return false;
  }
  void GetDeviceLocalityAsync(const std::string&, tensorflow::DeviceLocality*,
                              tensorflow::StatusCallback done) override {
    done(absl::UnimplementedError("loopback"));
  }
  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>*) override {
    return absl::UnimplementedError("loopback");
  }
  absl::Status GetCoordinationClientCache(
      std::unique_ptr<tensorflow::CoordinationClientCache>*) override {
    return absl::UnimplementedError("loopback");
  }

 private:
  Loopback* wire_;
};

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_LOOPBACK_TASKS_H_
