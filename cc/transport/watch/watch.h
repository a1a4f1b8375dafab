// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// All fused receives of this process that wait, on the receiver's and on the
// sender's side, and one timer that looks at those that wait for long.

#ifndef TF_FUSE_CC_TRANSPORT_WATCH_WATCH_H_
#define TF_FUSE_CC_TRANSPORT_WATCH_WATCH_H_

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// Something that waits. Shared, so that it stands while the timer looks at it.
class Waiting {
 public:
  virtual ~Waiting() = default;

  // Called again and again while it waits, on the timer's thread, with no lock
  // held. `waited_micros` counts from its entry.
  virtual void OnTick(uint64_t waited_micros) = 0;

  // False, and nothing in `out`, if it waits no longer. Leaves waited_micros
  // alone.
  virtual bool Describe(v1::WaitingReceive* out) = 0;

  // The id of the request that it has sent, and waits for; 0 if it has sent
  // none.
  virtual int64_t awaited_request_id() { return 0; }
};

class Watch {
 public:
  // The place of one Waiting in the list; left on destruction. A member of what
  // waits, so that nothing ended stays in the list.
  class Place {
   public:
    Place() = default;
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Once. `request_id` is 0 on the receiver's side.
    void Enter(const std::shared_ptr<Waiting>& waiting, int64_t request_id = 0);

   private:
    friend class Watch;
    struct Entry {
      uint64_t start_micros;
      int64_t request_id;
      std::weak_ptr<Waiting> waiting;
    };
    std::list<Entry>::iterator entry_;
    bool entered_ = false;
  };

  // What waits, the longest first: at most kMaxListed, and no more than fit
  // into kMaxListedBytes. Whoever may ask must not ask for all memory.
  static constexpr size_t kMaxListed = 1000;
  static constexpr size_t kMaxListedBytes = 4 << 20;
  v1::WaitingReceives Describe();

  // The request with that id that this process serves, or null. With what stall
  // queries ask for.
  std::shared_ptr<Waiting> Find(int64_t request_id);

  // Whether this process waits for the answer to that request of its own. Looks
  // at all that waits: for what is rarely asked.
  bool Awaits(int64_t request_id);

  static Watch* Get();

 private:
  using Entries = std::list<Place::Entry>;

  struct Found {
    uint64_t waited_micros;
    std::shared_ptr<Waiting> waiting;
  };
  // Those that have waited for `micros`, the longest first, up to `most`.
  // Locking a weak pointer may leave us with the last reference, whose end
  // needs the lock: so nothing may be done with them before the lock is given
  // back.
  std::vector<Found> WaitingFor(uint64_t micros, size_t most = SIZE_MAX);
  void Run();

  absl::Mutex mu_;
  // In the order of their starts.
  Entries entries_ ABSL_GUARDED_BY(mu_);
  // Of those that have an id; of equal ids the first.
  absl::flat_hash_map<int64_t, Entries::iterator> by_id_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_WATCH_WATCH_H_
