// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/grpc_chunk.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/executors.h"
#include "base/metrics.h"
#include "base/recycled_memory.h"
#include "base/tensor_buffer.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/random.h"
#include "tf_fuse/v1/collectives.pb.h"
#include "transport/message/receive_keys.h"
#include "transport/peers/recv_tensor_call.h"

namespace tf_fuse {

using tensorflow::Allocator;
using tensorflow::Tensor;

namespace {

// Hands out memory of the caller's, or its own where there is none.
class LandingAllocator : public Allocator {
 public:
  LandingAllocator(char* destination, uint64_t bytes)
      : destination_(destination), bytes_(bytes) {}

  std::string Name() override { return "tf_fuse_landing"; }
  void* AllocateRaw(size_t alignment, size_t size) override {
    // A peer decides on the size: it gets the memory only if that is right.
    if (destination_ != nullptr && size == bytes_) return destination_;
    return tensorflow::cpu_allocator()->AllocateRaw(alignment, size);
  }
  void DeallocateRaw(void* memory) override {
    if (memory != destination_) {
      tensorflow::cpu_allocator()->DeallocateRaw(memory);
    }
  }

 private:
  char* const destination_;
  const uint64_t bytes_;
};

// A device with this memory only. TensorFlow parses a tensor into the memory of
// the device that its caller passes.
class LandingDevice : public tensorflow::DeviceBase {
 public:
  LandingDevice(char* destination, uint64_t bytes)
      : DeviceBase(tensorflow::Env::Default()),
        allocator_(destination, bytes) {}

  Allocator* GetAllocator(tensorflow::AllocatorAttributes) override {
    return &allocator_;
  }
  const tensorflow::DeviceAttributes& attributes() const override {
    static const auto* const attributes = [] {
      auto* made = new tensorflow::DeviceAttributes;
      made->set_device_type("CPU");
      return made;
    }();
    return *attributes;
  }

 private:
  LandingAllocator allocator_;
};

// Of a request: who made it, and as which of its requests.
struct Order {
  uint64_t process;
  uint64_t number;

  static Order Next() {
    static const uint64_t process = tensorflow::random::New64() | 1;
    static std::atomic<uint64_t> requests{0};
    return {process, ++requests};
  }
  bool Before(const Order& other) const {
    return process != 0 && process == other.process && number < other.number;
  }
};

class GrpcCall : public ChunkCall {
 public:
  GrpcCall(const std::string& task, tensorflow::WorkerCacheInterface* workers,
           const ChunkKey& key, char* destination)
      : task_(task),
        key_(key),
        destination_(destination),
        device_(destination, key.bytes),
        call_(std::make_unique<RecvCall>(
            // The remote access does not outlive its workers.
            std::shared_ptr<tensorflow::WorkerCacheInterface>(
                workers, [](tensorflow::WorkerCacheInterface*) {}),
            task, key.step_id, &device_, tensorflow::AllocatorAttributes())) {}

  static void Start(const std::shared_ptr<GrpcCall>& self,
                    std::function<void(const absl::Status&)> done) {
    absl::Status status = self->call_->Init();
    if (!status.ok()) return done(status);
    v1::GrpcChunkRequest request;
    request.set_key(self->key_.key);
    request.set_device(self->key_.device);
    request.set_device_incarnation(self->key_.device_incarnation);
    request.set_bytes(self->key_.bytes);
    request.set_collective(self->key_.collective);
    request.set_operand(self->key_.operand);
    request.set_consumer(self->key_.consumer);
    const Order order = Order::Next();
    request.set_process(order.process);
    request.set_number(order.number);
    self->call_->request()->set_rendezvous_key(kFusedRendezvousKey);
    self->call_->request()->mutable_transport_options()->PackFrom(request);
    RecvCall* const call = self->call_.get();
    call->Start([self, done = std::move(done)] {
      self->call_->ReleaseWorker();
      done(self->Result());
    });
  }

  void Cancel(const absl::Status& why) override { call_->StartAbort(why); }

  const Tensor& tensor() const { return call_->tensor(); }

 private:
  absl::Status Result() const {
    absl::Status status = call_->status();
    if (!status.ok()) return status;
    if (tensor().TotalBytes() != key_.bytes ||
        (destination_ != nullptr && tensor().data() != destination_ &&
         key_.bytes > 0)) {
      return absl::DataLossError(absl::StrCat(
          task_, " answered with ", tensor().TotalBytes(),
          " bytes where a chunk of ", key_.bytes, " bytes was expected"));
    }
    Metrics::Get()->collective_bytes_grpc.fetch_add(key_.bytes);
    return absl::OkStatus();
  }

  const std::string task_;
  const ChunkKey key_;
  char* const destination_;
  LandingDevice device_;
  const std::unique_ptr<RecvCall> call_;
};

// Memory of a producer, who goes on when gRPC has let go of it.
class PostedBuffer : public MemoryBuffer {
 public:
  PostedBuffer(PostedChunk posted, uint64_t bytes)
      : MemoryBuffer(const_cast<char*>(posted.data), bytes, "tf_fuse_chunk"),
        posted_(std::move(posted)) {}
  ~PostedBuffer() override { posted_.done(); }

  bool OwnsMemory() const override { return false; }

 private:
  const PostedChunk posted_;
};

// Requests by the chunk that they wait for. Who asks for one again has given
// its first request up, but the cancellation may come later, or never: gRPC
// loses one that comes before the request is handled. So the second cancels the
// first, and begins when that has ended. Threads of the server may take them up
// in the other order: then the first is refused.
class WaitingLines {
 public:
  static WaitingLines* Get() {
    static auto* lines = new WaitingLines;
    return lines;
  }

  // False, and `begin` is not called, if a later request is there.
  bool Enter(const std::string& chunk, Order order,
             std::shared_ptr<tensorflow::CancellationManager> cancellation,
             std::function<void()> begin) {
    std::shared_ptr<tensorflow::CancellationManager> before;
    {
      absl::MutexLock lock(&mu_);
      std::deque<Waiting>& line = lines_[chunk];
      if (!line.empty()) {
        if (order.Before(line.back().order)) return false;
        before = line.back().cancellation;
      }
      line.push_back({order, std::move(cancellation), begin});
    }
    if (before == nullptr) {
      begin();
    } else {
      before->StartCancel();
    }
    return true;
  }

  // The first one has ended.
  void Leave(const std::string& chunk) {
    std::function<void()> next;
    {
      absl::MutexLock lock(&mu_);
      auto found = lines_.find(chunk);
      found->second.pop_front();
      if (found->second.empty()) {
        lines_.erase(found);
      } else {
        next = found->second.front().begin;
      }
    }
    if (next != nullptr) next();
  }

 private:
  struct Waiting {
    Order order;
    std::shared_ptr<tensorflow::CancellationManager> cancellation;
    std::function<void()> begin;
  };

  absl::Mutex mu_;
  std::map<std::string, std::deque<Waiting>> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<ChunkCall> TakeByGrpc(const std::string& task,
                                      tensorflow::WorkerCacheInterface* workers,
                                      const ChunkKey& key, char* destination,
                                      ChunkDone done) {
  auto call = std::make_shared<GrpcCall>(task, workers, key, destination);
  GrpcCall::Start(call, std::move(done));
  return call;
}

std::shared_ptr<ChunkCall> BorrowByGrpc(
    const std::string& task, tensorflow::WorkerCacheInterface* workers,
    const ChunkKey& key, LoanDone done) {
  const std::shared_ptr<char> buffer = RecycledBuffer(key.bytes);
  if (buffer == nullptr) {
    done(absl::ResourceExhaustedError(
        absl::StrCat("no memory for a chunk of ", key.bytes, " bytes")));
    return nullptr;
  }
  return TakeByGrpc(
      task, workers, key, buffer.get(),
      [buffer, done = std::move(done)](const absl::Status& status) {
        if (!status.ok()) return done(status);
        done(ChunkLoan(buffer.get(), [buffer] {}));
      });
}

void ServeChunk(const std::shared_ptr<ChunkSource>& source,
                RequestBudget::Ticket ticket, tensorflow::CallOptions* options,
                const tensorflow::RecvTensorRequest& request,
                ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  v1::GrpcChunkRequest chunk;
  if (!chunk.ParseFromString(request.transport_options().value())) {
    return done(absl::InvalidArgumentError(
        "RecvTensorRequest: transport_options hold no GrpcChunkRequest"));
  }
  const ChunkKey key = {request.step_id(), chunk.key(),
                        chunk.device(),    chunk.device_incarnation(),
                        chunk.bytes(),     chunk.collective(),
                        chunk.operand(),   chunk.consumer()};
  // It may be cancelled while the request is being taken up.
  auto cancellation = std::make_shared<tensorflow::CancellationManager>();
  // Called with the lock held that ClearCancelCallback() takes, which the
  // answer to a cancelled request calls: so on another thread.
  options->SetCancelCallback([cancellation] {
    ScheduleElsewhere([cancellation] { cancellation->StartCancel(); });
  });
  const std::string line =
      absl::StrCat(reinterpret_cast<uintptr_t>(source.get()), ":", key.step_id,
                   ":", key.device, ":", key.key);
  auto kept = std::make_shared<RequestBudget::Ticket>(std::move(ticket));
  auto answer = [options, response, bytes = chunk.bytes(), kept,
                 done = std::move(done)](absl::StatusOr<PostedChunk> posted) {
    options->ClearCancelCallback();
    kept->Release();
    if (!posted.ok()) return done(posted.status());
    const Tensor tensor = BytesIn(new PostedBuffer(*std::move(posted), bytes));
    done(tensorflow::grpc::EncodeTensorToByteBuffer(
        /*is_dead=*/false, tensor, /*require_ack=*/false, response));
  };
  auto begin = [line, source, key, cancellation, answer] {
    source->Take(
        key, cancellation.get(),
        [line, cancellation, answer](absl::StatusOr<PostedChunk> posted) {
          WaitingLines::Get()->Leave(line);
          answer(std::move(posted));
        });
  };
  if (!WaitingLines::Get()->Enter(line, {chunk.process(), chunk.number()},
                                  cancellation, std::move(begin))) {
    answer(absl::CancelledError(absl::StrCat(
        "the chunk was asked for again before this request came: key ",
        key.key)));
  }
}

}  // namespace tf_fuse
