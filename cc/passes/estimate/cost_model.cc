// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/estimate/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

namespace tf_fuse {

namespace {

// More parts than this never paid in any model; it bounds the search.
constexpr size_t kMaxParts = 16;
// Receives are merged to at most so many atoms before the search.
constexpr size_t kMaxAtoms = 64;

// Receives that no split separates.
struct Atom {
  std::vector<size_t> members;
  double bytes = 0;
  double ready_us = 0;
  double tail_us = 0;
};

void Append(const Atom& from, Atom* to) {
  to->members.insert(to->members.end(), from.members.begin(),
                     from.members.end());
  to->bytes += from.bytes;
  to->ready_us = std::max(to->ready_us, from.ready_us);
  to->tail_us = std::max(to->tail_us, from.tail_us);
}

// Whether a call between the two could not end the step earlier: they are
// needed, and are there, at almost the same time.
bool AreAlike(const Atom& a, const Atom& b, double within_us) {
  return std::abs(a.tail_us - b.tail_us) <= within_us &&
         std::abs(a.ready_us - b.ready_us) <= within_us;
}

// The order in which calls had best be answered: whenever one can be, the one
// with the longest tail of those that are ready (Schrage's rule for one machine
// with release and delivery times).
std::vector<size_t> OrderOfCalls(const std::vector<Atom>& atoms,
                                 const CostModel& model) {
  std::vector<size_t> by_ready(atoms.size());
  std::iota(by_ready.begin(), by_ready.end(), size_t{0});
  std::stable_sort(by_ready.begin(), by_ready.end(), [&](size_t a, size_t b) {
    return atoms[a].ready_us < atoms[b].ready_us;
  });
  // The longest tail on top; of equal ones the first.
  auto is_below = [&](size_t a, size_t b) {
    if (atoms[a].tail_us != atoms[b].tail_us) {
      return atoms[a].tail_us < atoms[b].tail_us;
    }
    return a > b;
  };
  std::priority_queue<size_t, std::vector<size_t>, decltype(is_below)> ready(
      is_below);
  std::vector<size_t> order;
  double now_us = 0;
  for (size_t next = 0; order.size() < atoms.size();) {
    if (ready.empty()) {
      now_us = std::max(now_us, atoms[by_ready[next]].ready_us);
    }
    while (next < by_ready.size() && atoms[by_ready[next]].ready_us <= now_us) {
      ready.push(by_ready[next++]);
    }
    order.push_back(ready.top());
    now_us += atoms[ready.top()].bytes / model.bytes_per_us;
    ready.pop();
  }
  return order;
}

// The receives in the order of calls, neighbours that are alike merged.
std::vector<Atom> ToAtoms(const std::vector<Arrival>& arrivals,
                          const CostModel& model) {
  std::vector<Atom> single;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& arrival = arrivals[i];
    single.push_back({{i}, arrival.bytes, arrival.ready_us, arrival.tail_us});
  }
  const std::vector<size_t> order = OrderOfCalls(single, model);
  for (double within_us = model.rpc_us;; within_us *= 2) {
    std::vector<Atom> atoms;
    for (const size_t i : order) {
      if (!atoms.empty() && AreAlike(atoms.back(), single[i], within_us)) {
        Append(single[i], &atoms.back());
      } else {
        atoms.push_back(single[i]);
      }
    }
    if (atoms.size() <= kMaxAtoms) return atoms;
  }
}

// After some of the atoms, in some number of parts.
struct State {
  double end_us = std::numeric_limits<double>::infinity();  // Of the step.
  double free_us = 0;  // When the last part has arrived.
  size_t begin = 0;    // The first atom of the last part.
};

}  // namespace

double PredictEnd(const std::vector<Arrival>& arrivals,
                  const std::vector<std::vector<size_t>>& parts,
                  const CostModel& model) {
  std::vector<Atom> atoms;
  for (const std::vector<size_t>& part : parts) {
    Atom atom;
    for (const size_t i : part) {
      const Arrival& arrival = arrivals[i];
      Append({{i}, arrival.bytes, arrival.ready_us, arrival.tail_us}, &atom);
    }
    atoms.push_back(std::move(atom));
  }
  double end_us = 0;
  double free_us = 0;
  for (const size_t i : OrderOfCalls(atoms, model)) {
    free_us = std::max(free_us, atoms[i].ready_us) + model.rpc_us +
              atoms[i].bytes / model.bytes_per_us;
    end_us = std::max(end_us, free_us + atoms[i].tail_us);
  }
  return end_us;
}

std::vector<std::vector<size_t>> SplitByCost(
    const std::vector<Arrival>& arrivals, const CostModel& model) {
  const std::vector<Atom> atoms = ToAtoms(arrivals, model);
  const size_t n = atoms.size();
  const size_t most = std::min(n, kMaxParts);
  // best[k][i]: the first i atoms in k parts.
  std::vector<std::vector<State>> best(most + 1, std::vector<State>(n + 1));
  best[0][0].end_us = 0;
  for (size_t k = 1; k <= most; ++k) {
    for (size_t i = k; i <= n; ++i) {
      double bytes = 0;
      double ready_us = 0;
      double tail_us = 0;
      // The last part is atoms [j, i).
      for (size_t j = i; j-- > k - 1;) {
        bytes += atoms[j].bytes;
        ready_us = std::max(ready_us, atoms[j].ready_us);
        tail_us = std::max(tail_us, atoms[j].tail_us);
        const State& before = best[k - 1][j];
        const double free_us = std::max(before.free_us, ready_us) +
                               model.rpc_us + bytes / model.bytes_per_us;
        const double end_us = std::max(before.end_us, free_us + tail_us);
        State& state = best[k][i];
        if (end_us < state.end_us ||
            (end_us == state.end_us && free_us < state.free_us)) {
          state = {end_us, free_us, j};
        }
      }
    }
  }
  // A part more has to gain a call's work: what it costs beside the delay.
  size_t parts = std::min<size_t>(1, n);
  for (size_t k = 2; k <= most; ++k) {
    const double gain = best[parts][n].end_us - best[k][n].end_us;
    if (gain > model.rpc_us * static_cast<double>(k - parts)) parts = k;
  }
  std::vector<std::vector<size_t>> result;
  for (size_t i = n, k = parts; k > 0; --k) {
    const size_t begin = best[k][i].begin;
    std::vector<size_t> members;
    for (size_t j = begin; j < i; ++j) {
      members.insert(members.end(), atoms[j].members.begin(),
                     atoms[j].members.end());
    }
    std::sort(members.begin(), members.end());
    result.push_back(std::move(members));
    i = begin;
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace tf_fuse
