// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Writes the traced receives into the profile (docs/watching.md has its form),
// and, for tf_fuse.report.record, when threads ran operations.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "transport/watch/busy_times.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/stall_report.h"
#include "tsl/profiler/lib/profiler_factory.h"
#include "tsl/profiler/lib/profiler_interface.h"
#include "tsl/profiler/protobuf/profiler_options.pb.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace tf_fuse {

namespace {

using tensorflow::profiler::XEvent;
using tensorflow::profiler::XEventMetadata;
using tensorflow::profiler::XLine;
using tensorflow::profiler::XPlane;
using tensorflow::profiler::XSpace;
using tensorflow::profiler::XStat;

// TensorFlow's viewers show planes with this prefix.
constexpr char kPlaneName[] = "/device:CUSTOM:tf_fuse";
constexpr char kBusyLineName[] = "operations";
// An option of the request by which tf_fuse.report.record records a task:
// milliseconds. TensorFlow's service would look every millisecond whether the
// profile's duration is over, which alone slows steps; this profiler sleeps.
constexpr char kRecordOption[] = "tf_fuse_record_ms";
constexpr int64_t kMaxRecordMs = 600 * 1000;

std::vector<std::string> TensorNames(const TracedRecv& event) {
  if (event.received != nullptr) return event.received->tensor_names;
  std::vector<std::string> names;
  for (const auto& key : event.served->keys) names.emplace_back(key.edge_name);
  return names;
}

std::string Peer(const TracedRecv& event) {
  return event.received != nullptr
             ? event.received->send_task
             : TaskOfDevice(event.served->source.dst_device);
}

// Gives names their numbers.
class PlaneWriter {
 public:
  explicit PlaneWriter(XPlane* plane) : plane_(plane) {
    plane->set_name(kPlaneName);
  }

  template <typename T>  // XEvent, XEventMetadata or XPlane.
  void AddText(const std::string& name, std::string value, T* to) {
    Add(name, to)->set_str_value(std::move(value));
  }
  template <typename T>
  void AddNumber(const std::string& name, int64_t value, T* to) {
    Add(name, to)->set_int64_value(value);
  }

  // What all events of one fused receive have in common. `keys` identifies it.
  int64_t Metadata(const TracedRecv& event) {
    const void* keys = event.received != nullptr
                           ? static_cast<const void*>(event.received.get())
                           : event.served.get();
    XEventMetadata* added;
    const int64_t number = Metadata(keys, &added);
    if (added != nullptr) {
      const std::vector<std::string> names = TensorNames(event);
      added->set_name(absl::StrCat(
          event.received != nullptr ? "fused receive of " : "serve ",
          names.size(), " tensors"));
      AddText("tensor_names", absl::StrJoin(names, ","), added);
    }
    return number;
  }

  // Of what `key` identifies. `added` is null if it had been added before.
  int64_t Metadata(const void* key, XEventMetadata** added) {
    const auto [it, is_new] =
        metadata_.try_emplace(key, static_cast<int64_t>(metadata_.size()) + 1);
    *added =
        is_new ? &(*plane_->mutable_event_metadata())[it->second] : nullptr;
    if (is_new) (*added)->set_id(it->second);
    return it->second;
  }

 private:
  template <typename T>
  XStat* Add(const std::string& name, T* to) {
    const auto [it, is_new] =
        stats_.try_emplace(name, static_cast<int64_t>(stats_.size()) + 1);
    if (is_new) {
      auto& metadata = (*plane_->mutable_stat_metadata())[it->second];
      metadata.set_id(it->second);
      metadata.set_name(name);
    }
    XStat* stat = to->add_stats();
    stat->set_metadata_id(it->second);
    return stat;
  }

  XPlane* const plane_;
  std::map<const void*, int64_t> metadata_;
  std::map<std::string, int64_t> stats_;
};

void WriteEvent(const TracedRecv& in, int64_t line_start_ns,
                PlaneWriter* writer, XEvent* out) {
  out->set_metadata_id(writer->Metadata(in));
  out->set_offset_ps((in.start_ns - line_start_ns) * 1000);
  out->set_duration_ps(std::max<int64_t>(in.end_ns - in.start_ns, 0) * 1000);
  const std::vector<std::string> names = TensorNames(in);
  writer->AddText("peer", Peer(in), out);
  writer->AddNumber("slots", static_cast<int64_t>(names.size()), out);
  writer->AddNumber("bytes", in.bytes, out);
  writer->AddNumber("step_id", in.step_id, out);
  if (in.code != absl::StatusCode::kOk) {
    writer->AddText("error", absl::StatusCodeToString(in.code), out);
  }
  if (in.waits_micros.size() != names.size() || names.empty()) return;
  const auto slowest =
      std::max_element(in.waits_micros.begin(), in.waits_micros.end());
  writer->AddText("slowest_tensor", names[slowest - in.waits_micros.begin()],
                  out);
  writer->AddNumber("slowest_wait_us", *slowest, out);
  writer->AddText("waits_us", absl::StrJoin(in.waits_micros, ","), out);
}

// One line per direction and peer, and further ones where events overlap: those
// of one line must not.
void WriteLines(const std::vector<TracedRecv>& events, int64_t begin_ns,
                PlaneWriter* writer, XPlane* plane) {
  std::map<std::string, std::vector<const TracedRecv*>> by_name;
  for (const TracedRecv& event : events) {
    const char* direction = event.received != nullptr ? "from " : "to ";
    by_name[absl::StrCat(direction, Peer(event))].push_back(&event);
  }
  int64_t next_line = 1;
  for (auto& [name, of_peer] : by_name) {
    std::stable_sort(of_peer.begin(), of_peer.end(),
                     [](const TracedRecv* a, const TracedRecv* b) {
                       return a->start_ns < b->start_ns;
                     });
    // By the end of its last event: which line is free.
    std::vector<std::pair<int64_t, XLine*>> lines;
    for (const TracedRecv* event : of_peer) {
      auto free = std::find_if(lines.begin(), lines.end(), [&](auto& line) {
        return line.first <= event->start_ns;
      });
      if (free == lines.end()) {
        XLine* line = plane->add_lines();
        line->set_id(next_line++);
        line->set_name(lines.empty()
                           ? name
                           : absl::StrCat(name, " (", lines.size() + 1, ")"));
        line->set_timestamp_ns(begin_ns);
        free = lines.insert(lines.end(), {0, line});
      }
      free->first = event->end_ns;
      WriteEvent(*event, begin_ns, writer, free->second->add_events());
    }
  }
}

void WriteBusyTimes(const std::vector<BusyTime>& times, int64_t begin_ns,
                    PlaneWriter* writer, XPlane* plane) {
  if (times.empty()) return;
  XLine* line = plane->add_lines();
  line->set_id(plane->lines_size());
  line->set_name(kBusyLineName);
  line->set_timestamp_ns(begin_ns);
  XEventMetadata* metadata;
  const int64_t number = writer->Metadata(&times, &metadata);
  metadata->set_name("runs operations");
  for (const BusyTime& time : times) {
    XEvent* event = line->add_events();
    event->set_metadata_id(number);
    event->set_offset_ps((time.start_ns - begin_ns) * 1000);
    event->set_duration_ps((time.end_ns - time.start_ns) * 1000);
  }
}

class RecvProfiler : public tsl::profiler::ProfilerInterface {
 public:
  // Records for `record_ms`, during which Stop() waits. 0: a profile that ends
  // when TensorFlow stops it, and in which TensorFlow writes operations.
  explicit RecvProfiler(int64_t record_ms) : record_ms_(record_ms) {}
  ~RecvProfiler() override { End(); }

  absl::Status Start() override {
    RecvTrace::Get()->Start();
    has_busy_times_ = record_ms_ > 0 && BusyTimes::Get()->Start();
    started_ = true;
    return absl::OkStatus();
  }

  absl::Status Stop() override {
    if (started_) absl::SleepFor(absl::Milliseconds(record_ms_));
    End();
    return absl::OkStatus();
  }

  absl::Status CollectData(XSpace* space) override {
    if (events_.empty() && dropped_ == 0 && record_ms_ == 0) {
      return absl::OkStatus();
    }
    XPlane* plane = space->add_planes();
    PlaneWriter writer(plane);
    const int64_t begin_ns = FirstNanos();
    WriteLines(events_, begin_ns, &writer, plane);
    if (dropped_ > 0) writer.AddNumber("dropped_events", dropped_, plane);
    if (record_ms_ > 0) {
      WriteBusyTimes(busy_times_, begin_ns, &writer, plane);
      // TensorFlow makes times of lines relative to the begin of this profile,
      // and each task's begins at another time.
      writer.AddNumber("begin_ns", begin_ns, plane);
      writer.AddNumber("has_busy_times", has_busy_times_, plane);
      writer.AddNumber("dropped_busy_times", dropped_busy_times_, plane);
    }
    events_.clear();
    busy_times_.clear();
    return absl::OkStatus();
  }

 private:
  void End() {
    if (!std::exchange(started_, false)) return;
    events_ = RecvTrace::Get()->Stop(&dropped_);
    if (has_busy_times_) {
      busy_times_ = BusyTimes::Get()->Stop(&dropped_busy_times_);
    }
  }

  // Of events and busy times; 0 if there are none.
  int64_t FirstNanos() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    if (!busy_times_.empty()) first = busy_times_[0].start_ns;
    for (const TracedRecv& event : events_) {
      first = std::min(first, event.start_ns);
    }
    return first < std::numeric_limits<int64_t>::max() ? first : 0;
  }

  const int64_t record_ms_;
  bool started_ = false;
  std::vector<TracedRecv> events_;
  int64_t dropped_ = 0;
  bool has_busy_times_ = false;
  std::vector<BusyTime> busy_times_;
  int64_t dropped_busy_times_ = 0;
};

// 0 if `options` are not those of a recording.
int64_t RecordMillis(const tensorflow::ProfileOptions& options) {
  const auto found = options.advanced_configuration().find(kRecordOption);
  if (found == options.advanced_configuration().end()) return 0;
  return std::clamp<int64_t>(found->second.int64_value(), 0, kMaxRecordMs);
}

[[maybe_unused]] const bool kRegistered = [] {
  tsl::profiler::RegisterProfilerFactory(
      [](const tensorflow::ProfileOptions& options)
          -> std::unique_ptr<tsl::profiler::ProfilerInterface> {
        const int64_t record_ms = RecordMillis(options);
        if (record_ms == 0 && options.host_tracer_level() == 0) return nullptr;
        return std::make_unique<RecvProfiler>(record_ms);
      });
  return true;
}();

}  // namespace

}  // namespace tf_fuse
