// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// PendingFrame: how tensors of a device come into the memory of the host.

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device.h"
#include "transport/sender/pending_frame.h"

namespace tf_fuse {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

bool PendingFrame::IsOnDevice(size_t index) const {
  const Slot& slot = slots_[index];
  return !slot.is_dead && slot.tensor.TotalBytes() > 0 &&
         !send_args_[index].alloc_attrs.on_host();
}

void PendingFrame::CopyToHost() {
  std::vector<size_t> copied;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; collecting_ && status_.ok() && i < slots_.size(); ++i) {
      if (!IsOnDevice(i)) continue;
      Slot& slot = slots_[i];
      on_device_[i] = slot.tensor;
      slot.beside = !tensorflow::DataTypeCanUseMemcpy(slot.tensor.dtype()) ||
                    slot.tensor.TotalBytes() > keys_->max_packed_tensor_bytes;
      if (!slot.beside) copied.push_back(i);
    }
  }
  // One for this function, so that the last copy does not finish before all
  // have begun.
  auto remaining = std::make_shared<std::atomic<size_t>>(copied.size() + 1);
  auto finish_one = [self = shared_from_this(), remaining] {
    if (remaining->fetch_sub(1) == 1) self->Finish();
  };
  for (const size_t index : copied) CopySlot(index, finish_one);
  finish_one();
}

void PendingFrame::CopySlot(size_t index, std::function<void()> done) {
  const Rendezvous::ParsedKey& key = keys_->keys[index];
  auto from = std::make_shared<Tensor>(on_device_[index]);
  auto to = std::make_shared<Tensor>();
  auto finish = [this, index, to, done](const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      if (!status.ok()) {
        status_.Update(status);
        failed_.push_back(index);
      } else if (collecting_) {
        slots_[index].tensor = *to;
      }
    }
    done();
  };
  tensorflow::Device* device = nullptr;
  const absl::Status status =
      env_->device_mgr->LookupDevice(key.src_device, &device);
  if (!status.ok()) return finish(status);
  if (contexts_[index] == nullptr) {
    return finish(absl::InternalError(absl::StrCat(
        "the tensor ", std::string(key.edge_name), " in the memory of ",
        std::string(key.src_device), " came without its device context")));
  }
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  *to = Tensor(device->GetAllocator(attributes), from->dtype(), from->shape());
  if (!to->IsInitialized()) {
    return finish(absl::ResourceExhaustedError(
        absl::StrCat("out of host memory for the ", from->TotalBytes(),
                     " bytes of ", std::string(key.edge_name), ", a tensor of ",
                     std::string(key.src_device))));
  }
  // The copy keeps neither tensor alive.
  contexts_[index]->CopyDeviceTensorToCPU(
      from.get(), key.edge_name, device, to.get(),
      [from, finish](const absl::Status& copied) { finish(copied); });
}

}  // namespace tf_fuse
