// The functions that a warp runs, run by a team of threads that meet at barriers: is the work shared out rightly, and
// is there a barrier wherever a member reads what another wrote? Built with -fsanitize=thread, which sees a missing one.
//
// Prints nothing and returns 0 when every team agrees with one thread.

#include <barrier>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../csrc/tree.h"
#include "../csrc/verify.h"
#include "../csrc/walk.h"

namespace eagle3ref {
namespace {

constexpr int64_t kLanes = 5;  // no power of two: nothing may depend on one

struct Shared {
  std::barrier<> meet{kLanes};
  int64_t values[kLanes];
};

struct Lane {
  Shared* shared;
  int64_t lane;

  int64_t rank() const { return lane; }
  int64_t size() const { return kLanes; }
  void sync() const { shared->meet.arrive_and_wait(); }

  Counted gather(int64_t value) const {
    sync();
    shared->values[lane] = value;
    sync();
    Counted found{0, 0};
    for (int64_t i = 0; i < kLanes; ++i) {
      found.all += shared->values[i];
      if (i < lane) found.below += shared->values[i];
    }
    return found;
  }

  int64_t sum(int64_t value) const { return gather(value).all; }
  Counted count(bool flag) const { return gather(flag); }
};

void in_team(const std::function<void(const Lane&)>& work) {
  Shared shared;
  std::vector<std::thread> threads;
  for (int64_t lane = 0; lane < kLanes; ++lane) threads.emplace_back([&, lane] { work(Lane{&shared, lane}); });
  for (std::thread& thread : threads) thread.join();
}

using Ids = std::vector<int64_t>;

struct BuiltTree {
  Ids tokens, parents, depths, positions;
  std::unique_ptr<bool[]> mask;
  bool refused = false;

  explicit BuiltTree(int64_t size)
      : tokens(size), parents(size), depths(size), positions(size), mask(new bool[size * size]) {}

  Tree view() {
    return {tokens.data(), parents.data(), depths.data(), positions.data(), mask.get(),
            static_cast<int64_t>(tokens.size())};
  }

  bool operator==(const BuiltTree& other) const {
    const size_t cells = tokens.size() * tokens.size();
    return tokens == other.tokens && parents == other.parents && depths == other.depths &&
           positions == other.positions && refused == other.refused &&
           std::equal(mask.get(), mask.get() + cells, other.mask.get());
  }
};

struct Path {
  Ids nodes, tokens;
  int64_t num_accepted = -2, bonus_token = -2;
  bool refused = false;

  explicit Path(int64_t size) : nodes(size - 1), tokens(size - 1) {}
  Verified view() { return {&num_accepted, nodes.data(), tokens.data(), &bonus_token, &refused}; }
  bool operator==(const Path&) const = default;
};

bool trees_agree(std::mt19937& random) {
  const int64_t size = 1 + random() % 40, nodes = 2 + random() % size;
  std::vector<float> scores(size);
  Ids tokens(size), parents(size);
  for (int64_t i = 0; i < size; ++i) {
    tokens[i] = random() % 9;
    parents[i] = random() % 50 == 0 ? static_cast<int64_t>(random() % 99) - 9 : static_cast<int64_t>(random() % (i + 1)) - 1;
    const float above = parents[i] < 0 || parents[i] >= i ? 1 : scores[parents[i]];
    scores[i] = random() % 60 == 0 ? NAN : above * static_cast<float>(random() % 3) / 2;
  }
  const Candidates<float> candidates{scores.data(), tokens.data(), parents.data(), size};
  BuiltTree one(nodes), team(nodes);
  std::vector<uint32_t> keys(size);
  std::vector<int32_t> node_of(size);
  one.refused = build_tree(OneThread{}, candidates, 7, 11, one.view(), keys.data(), node_of.data());
  in_team([&](const Lane& lane) {
    const bool refused = build_tree(lane, candidates, 7, 11, team.view(), keys.data(), node_of.data());
    if (lane.rank() == 0) team.refused = refused;
  });
  return one == team;
}

bool paths_agree(std::mt19937& random) {
  const int64_t size = 1 + random() % 12, vocab_size = 20;
  Ids tokens(size), parents(size), targets(size), removed(size);
  std::vector<double> coins(size + 1);
  std::vector<float> probs(size * vocab_size);
  for (int64_t i = 0; i < size; ++i) {
    tokens[i] = i % 2 == 0 ? i : random() % vocab_size;  // two siblings may hold one token, and are refused
    parents[i] = i == 0 ? -1 : static_cast<int64_t>(random() % i);
    targets[i] = random() % 9;
  }
  for (double& coin : coins) coin = random() % 17 / 16.0;
  for (float& prob : probs) prob = random() % 3 == 0 ? 0.0f : random() % 8 / 64.0f;
  const DraftNodes tree{tokens.data(), parents.data(), size};
  const TargetOnly<float> target{probs.data(), coins.data(), &coins[size], vocab_size, 1, 1, random() % 2 == 0};
  Path one_greedy(size), team_greedy(size), one(size), team(size);
  verify_greedy(OneThread{}, tree, targets.data(), one_greedy.view());
  verify_target_only(OneThread{}, tree, target, true, one.view(), removed.data());
  in_team([&](const Lane& lane) {
    verify_greedy(lane, tree, targets.data(), team_greedy.view());
    verify_target_only(lane, tree, target, true, team.view(), removed.data());
  });
  return one_greedy == team_greedy && one == team;
}

bool walks_agree(std::mt19937& random) {
  const int64_t size = random() % 30;
  Ids accepted(size);
  for (int64_t& count : accepted) count = random() % 4;
  const std::unique_ptr<bool[]> one(new bool[size]), team(new bool[size]);
  visit_positions(OneThread{}, accepted.data(), size, one.get());
  in_team([&](const Lane& lane) { visit_positions(lane, accepted.data(), size, team.get()); });
  return std::equal(one.get(), one.get() + size, team.get());
}

}  // namespace
}  // namespace eagle3ref

int main() {
  std::mt19937 random(0);
  for (int round = 0; round < 150; ++round) {
    if (!eagle3ref::trees_agree(random) || !eagle3ref::paths_agree(random) || !eagle3ref::walks_agree(random)) {
      std::printf("a team of %d differs from one thread in round %d\n", static_cast<int>(eagle3ref::kLanes), round);
      return 1;
    }
  }
  return 0;
}
