// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/partial_run_classes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace tf_fuse {

namespace {

// Sets of feeds by number; each combination of two is computed once.
class FeedSets {
 public:
  using Id = int;
  static constexpr Id kEmpty = 0;

  FeedSets() { Intern({}); }

  Id Of(NodeId feed) { return Intern({feed}); }

  Id Union(Id a, Id b) {
    return Combine(a, b, &unions_, [](const Set& x, const Set& y, Set* out) {
      std::set_union(x.begin(), x.end(), y.begin(), y.end(),
                     std::back_inserter(*out));
    });
  }

  Id Intersection(Id a, Id b) {
    return Combine(a, b, &intersections_,
                   [](const Set& x, const Set& y, Set* out) {
                     std::set_intersection(x.begin(), x.end(), y.begin(),
                                           y.end(), std::back_inserter(*out));
                   });
  }

 private:
  using Set = std::vector<NodeId>;  // Sorted.
  using Known = std::map<std::pair<Id, Id>, Id>;

  Id Intern(Set set) {
    auto [it, inserted] =
        ids_.emplace(std::move(set), static_cast<Id>(sets_.size()));
    if (inserted) sets_.push_back(it->first);
    return it->second;
  }

  template <typename Operation>
  Id Combine(Id a, Id b, Known* known, Operation operation) {
    if (a == b) return a;
    const std::pair<Id, Id> key = std::minmax(a, b);
    auto it = known->find(key);
    if (it != known->end()) return it->second;
    Set result;
    operation(sets_[a], sets_[b], &result);
    const Id id = Intern(std::move(result));
    known->emplace(key, id);
    return id;
  }

  std::map<Set, Id> ids_;
  std::vector<Set> sets_;
  Known unions_;
  Known intersections_;
};

}  // namespace

std::vector<int> FindFeedClasses(const PartitionView& view) {
  std::vector<int> classes(view.size(), FeedSets::kEmpty);
  std::vector<bool> is_feed(view.size(), false);
  bool any_feed = false;
  for (const Receive& receive : view.receives()) {
    if (!receive.client_terminated) continue;
    is_feed[receive.node] = true;
    any_feed = true;
  }
  if (!any_feed) return classes;

  FeedSets sets;
  std::vector<FeedSets::Id> above(view.size(), FeedSets::kEmpty);
  std::vector<bool> is_end(view.size(), true);
  for (const NodeId id : view.topological_order()) {
    if (is_feed[id]) above[id] = sets.Of(id);
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (edge.is_back_edge) continue;
      above[id] = sets.Union(above[id], above[edge.node]);
      is_end[edge.node] = false;
    }
  }
  // From the ends upwards; what is not yet known waits for everything.
  constexpr int kNotKnown = -1;
  classes.assign(view.size(), kNotKnown);
  const std::vector<NodeId>& order = view.topological_order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const NodeId id = *it;
    if (is_end[id]) classes[id] = above[id];
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (edge.is_back_edge) continue;
      int& of_input = classes[edge.node];
      of_input = of_input == kNotKnown
                     ? classes[id]
                     : sets.Intersection(of_input, classes[id]);
    }
  }
  return classes;
}

}  // namespace tf_fuse
