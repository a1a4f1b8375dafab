// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Plays the other side of a data channel, and sends wrong messages.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_LYING_PEER_H_
#define TF_FUSE_CC_TESTING_CHANNELS_LYING_PEER_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {
namespace testing {

using Random = std::mt19937_64;

// Of a chunk.
inline constexpr uint64_t kMaxBytes = 3 << 20;

inline uint64_t Below(Random* random, uint64_t limit) {
  return (*random)() % limit;
}

// Numbers that are likely to be wrong in an interesting way.
uint64_t OddNumber(Random* random, uint64_t near);

// The lying side of a connection: blocking, but not for long.
class Liar {
 public:
  explicit Liar(int fd);
  ~Liar();

  // False if it could not be sent. `claimed` is how many bytes the message says
  // follow it; `fd`, if it is one, goes along `fds` times.
  bool Send(const v1::ChannelMessage& message, uint64_t claimed,
            const std::string& behind = "", int fd = -1, int fds = 1);
  bool SendBytes(const std::string& bytes, int fd = -1, int fds = 1);
  // False at the end.
  bool Read(v1::ChannelMessage* message);
  // Takes what comes for as long as something is there, and forgets it.
  void Drain();
  void CloseForWriting();

 private:
  bool ReadAll(char* data, size_t size);

  const int fd_;
};

// An answer to a call, seldom a proper one.
v1::ChannelMessage OddAnswer(Random* random, uint64_t call, uint64_t bytes);

// What callers of a liar take at most.
inline constexpr uint64_t kMaxAnswer = 4096;

// Sends a few answers, seldom proper ones. False if one could not be sent.
bool LieToCaller(Liar* liar, Random* random, const v1::CallRequest& request);

// Sends something wrong, most of the time. False if it could not be sent.
bool Lie(Liar* liar, Random* random, const v1::ChunkRequest& request);

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_CHANNELS_LYING_PEER_H_
