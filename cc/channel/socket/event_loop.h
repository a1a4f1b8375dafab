// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs threads that wait for the sockets of all data channels of the process.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_EVENT_LOOP_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_EVENT_LOOP_H_

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

class EventLoop {
 public:
  // What to do when a socket is ready; called on the loop's thread, one at a
  // time, and must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnReadable() = 0;
    virtual void OnWritable() = 0;
  };

  // That of a socket, for as long as it is open; runs until the process ends.
  static EventLoop* For(int fd);

  // The loop keeps `handler` until Remove(). Errors: ResourceExhausted.
  absl::Status Add(int fd, std::shared_ptr<Handler> handler);
  // Whether OnWritable() is called, too.
  void WatchWritable(int fd, bool writable);
  void Remove(int fd);

 private:
  EventLoop();
  void Run();
  std::shared_ptr<Handler> Find(int fd);

  const int epoll_;
  absl::Mutex mu_;
  std::map<int, std::shared_ptr<Handler>> handlers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_EVENT_LOOP_H_
