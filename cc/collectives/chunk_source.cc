// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/chunk_source.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/fuse_remote_access.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tf_fuse {

using tensorflow::BufRendezvous;

namespace {

struct Sources {
  absl::Mutex mu;
  std::map<uint64_t, std::shared_ptr<ChunkSource>> by_token ABSL_GUARDED_BY(mu);
};

Sources* AllSources() {
  static Sources* sources = new Sources;
  return sources;
}

absl::StatusOr<PostedChunk> Posted(const ChunkKey& key,
                                   BufRendezvous::Hook* hook) {
  const tensorflow::Tensor& value = *hook->prod_value;
  if (hook->prod_dev->tensorflow_accelerator_device_info() != nullptr) {
    return absl::UnimplementedError(
        "chunks in the memory of accelerators go by TensorFlow's own way");
  }
  if (value.TotalBytes() != key.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a member of the collective has ", key.bytes, " bytes where ",
        hook->prod_dev->name(), " has ", value.TotalBytes(), " (shape ",
        value.shape().DebugString(), ", ",
        tensorflow::DataTypeString(value.dtype()), "): key ", key.key));
  }
  return PostedChunk{
      static_cast<const char*>(tensorflow::DMAHelper::base(&value)),
      [hook] { BufRendezvous::DoneWithHook(hook); }, /*read=*/nullptr};
}

}  // namespace

void ChunkSource::Take(const ChunkKey& key,
                       tensorflow::CancellationManager* cancellation,
                       PostedDone done) {
  {
    absl::MutexLock lock(&mu_);
    if (!ended_) ++users_;
    if (ended_) {
      // (Not under the lock.)
      tensorflow::Env::Default()->SchedClosure([done = std::move(done)] {
        done(absl::UnavailableError("the task has ended"));
      });
      return;
    }
  }
  {
    // Not held for longer: the step's end lets go of what waits in it.
    tensorflow::CollectiveExecutor::Handle executor(
        manager_->FindOrCreate(key.step_id), /*inherit_ref=*/true);
    tensorflow::CollectiveRemoteAccess* const access =
        executor.get()->remote_access();
    auto* const fuse = FuseRemoteAccess::From(access);
    const absl::Status alike =
        fuse == nullptr || key.collective.empty()
            ? absl::OkStatus()
            : fuse->operands()->Compare(key.collective, key.operand,
                                        key.consumer, key.device);
    if (!alike.ok()) {
      done(alike);
    } else {
      access->buf_rendezvous()->ConsumeBuf(
          key.key, key.device, key.device_incarnation,
          [key, done](const absl::Status& status, BufRendezvous::Hook* hook) {
            // A copy: when the chunk is done with, which may be in this call,
            // the hook goes, and this function with it.
            const PostedDone finish = done;
            if (!status.ok()) return finish(status);
            absl::StatusOr<PostedChunk> posted = Posted(key, hook);
            const bool refused = !posted.ok();
            finish(std::move(posted));
            if (refused) BufRendezvous::DoneWithHook(hook);
          },
          cancellation);
    }
  }
  absl::MutexLock lock(&mu_);
  --users_;
}

void ChunkSource::End() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  auto unused = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return users_ == 0; };
  mu_.Await(absl::Condition(&unused));
}

void ChunkSource::Register(uint64_t token,
                           std::shared_ptr<ChunkSource> source) {
  absl::MutexLock lock(&AllSources()->mu);
  AllSources()->by_token[token] = std::move(source);
}

void ChunkSource::Unregister(uint64_t token) {
  absl::MutexLock lock(&AllSources()->mu);
  AllSources()->by_token.erase(token);
}

std::shared_ptr<ChunkSource> ChunkSource::Find(uint64_t token) {
  absl::MutexLock lock(&AllSources()->mu);
  auto found = AllSources()->by_token.find(token);
  return found == AllSources()->by_token.end() ? nullptr : found->second;
}

}  // namespace tf_fuse
