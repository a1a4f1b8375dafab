// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Keeps the chunks that this member has posted, until they are taken.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_POSTS_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_POSTS_H_

#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// What was posted and not taken yet. A consumer that stops in the middle of a
// chunk would keep its producer waiting, even after the collective is aborted.
// So an abort ends the post, and the producer goes on. The reference here keeps
// the memory until the consumer lets go of it.
class PendingPosts {
 public:
  struct Post {
    tensorflow::Tensor tensor;
    std::function<void(const absl::Status&)> done;
  };

  std::shared_ptr<Post> Add(const tensorflow::Tensor& tensor,
                            std::function<void(const absl::Status&)> done) {
    auto post = std::make_shared<Post>();
    post->tensor = tensor;
    post->done = std::move(done);
    absl::MutexLock lock(&mu_);
    open_.insert(post);
    return post;
  }

  // Calls back, unless that was done.
  void End(const std::shared_ptr<Post>& post, const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      if (open_.erase(post) == 0) return;
    }
    std::exchange(post->done, nullptr)(status);
  }

  void EndAll(const absl::Status& status) {
    std::set<std::shared_ptr<Post>> all;
    {
      absl::MutexLock lock(&mu_);
      all = open_;
    }
    for (const std::shared_ptr<Post>& post : all) End(post, status);
  }

 private:
  absl::Mutex mu_;
  std::set<std::shared_ptr<Post>> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_POSTS_H_
