// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/socket/descriptors.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/setround.h"

namespace tf_fuse {

EventLoop* EventLoop::For(int fd) {
  // Their threads use them until the process ends.
  static const auto* const loops = [] {
    constexpr int kMaxLoops = 8;
    constexpr int kCoresPerLoop = 4;
    const int count = std::clamp(
        tensorflow::port::NumSchedulableCPUs() / kCoresPerLoop, 1, kMaxLoops);
    auto* const all = new std::vector<EventLoop*>;
    for (int i = 0; i < count; ++i) all->push_back(new EventLoop);
    return all;
  }();
  return (*loops)[fd % loops->size()];
}

EventLoop::EventLoop()
    : epoll_(OpenDescriptor([] { return epoll_create1(EPOLL_CLOEXEC); })) {
  if (epoll_ < 0) return;
  // Never joined: it ends with the process.
  (void)tensorflow::Env::Default()->StartThread(
      tensorflow::ThreadOptions(), "tf_fuse_data_channels", [this] { Run(); });
}

absl::Status EventLoop::Add(int fd, std::shared_ptr<Handler> handler) {
  {
    absl::MutexLock lock(&mu_);
    handlers_[fd] = std::move(handler);
  }
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (epoll_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  absl::MutexLock lock(&mu_);
  handlers_.erase(fd);
  return absl::ResourceExhaustedError(
      absl::StrCat("a data channel cannot be waited for: epoll_ctl failed: ",
                   std::strerror(error)));
}

void EventLoop::WatchWritable(int fd, bool writable) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (writable) event.events |= EPOLLOUT;
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Remove(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  std::shared_ptr<Handler> last;  // Perhaps; not destroyed under the lock.
  absl::MutexLock lock(&mu_);
  auto found = handlers_.find(fd);
  if (found == handlers_.end()) return;
  last = std::move(found->second);
  handlers_.erase(found);
}

std::shared_ptr<EventLoop::Handler> EventLoop::Find(int fd) {
  absl::MutexLock lock(&mu_);
  auto found = handlers_.find(fd);
  return found == handlers_.end() ? nullptr : found->second;
}

void EventLoop::Run() {
  // As on TensorFlow's pools, whose work may go on here.
  tensorflow::port::ScopedFlushDenormal flush;
  tensorflow::port::ScopedSetRound round(FE_TONEAREST);
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  while (true) {
    const int count = epoll_wait(epoll_, events, kEvents, -1);
    for (int i = 0; i < count; ++i) {
      const std::shared_ptr<Handler> handler = Find(events[i].data.fd);
      if (handler == nullptr) continue;
      if (events[i].events & EPOLLOUT) handler->OnWritable();
      if (events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) {
        handler->OnReadable();
      }
    }
  }
}

}  // namespace tf_fuse
