// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines what programs share that test the transport without a server; each
// program has one source file that includes it.

#ifndef TF_FUSE_CC_TESTING_PROGRAM_MAIN_H_
#define TF_FUSE_CC_TESTING_PROGRAM_MAIN_H_

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/peers/cluster.h"

namespace tf_fuse {

namespace testing {

// The only task that questions about this process find. No server runs here.
class TestedTask : public TaskServer {
 public:
  std::string task() const override { return "/job:ps/replica:0/task:0"; }
  std::string OwnHost() const override { return ""; }
  std::map<std::string, std::string> AddressesOfTasks() const override {
    return {};
  }
  std::shared_ptr<tensorflow::WorkerCacheInterface> Workers() override {
    return nullptr;
  }
  tensorflow::Device* HostDevice() override { return nullptr; }
};
inline const bool kTestedTaskIsKnown = [] {
  AddTaskServer(new TestedTask);
  return true;
}();

// Waits without absl::Mutex: ThreadSanitizer does not see Await().
class Ended {
 public:
  void Add() {
    std::lock_guard<std::mutex> lock(mu_);
    ++count_;
    changed_.notify_all();
  }
  bool WaitFor(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return count_ >= count; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  size_t count_ = 0;
};

// Ends the process. Threads of TensorFlow and of channels do not end, and
// nothing is left to be destroyed.
[[noreturn]] inline void Exit(int status) {
  std::fflush(stdout);
  _exit(status);
}

// Says why a test fails.
inline bool Fails(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return false;
}

// main() of a program that takes SECONDS and SEED.
inline int RunForSeconds(int argc, char** argv,
                         int (*run)(double seconds, uint64_t seed)) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SECONDS SEED\n", argv[0]);
    return 2;
  }
  Exit(run(std::atof(argv[1]), std::strtoull(argv[2], nullptr, 10)));
}

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_PROGRAM_MAIN_H_
