#include "resolver.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tfdist::collectives {
namespace {

constexpr auto kBetweenQuestions = std::chrono::milliseconds(500);

}  // namespace

struct Resolver::State {
  struct One {
    Address address;
    std::vector<SocketAddress> found;
    std::string error = "its name is being looked up";
  };

  const Resolve resolve;
  std::mutex mutex;  // of what follows
  std::condition_variable ended;
  std::vector<One> all;
  bool is_wanted = true;

  explicit State(Resolve resolve) : resolve(std::move(resolve)) {}
};

Resolver::Resolver(const std::vector<Address>& addresses, Resolve resolve)
    : state_(std::make_shared<State>(std::move(resolve))) {
  bool has_names = false;
  for (const Address& address : addresses) {
    State::One one{address, resolve_number(address)};
    has_names = has_names || one.found.empty();
    state_->all.push_back(std::move(one));
  }
  if (has_names) std::thread([state = state_] { ask(state); }).detach();
}

Resolver::~Resolver() {
  const std::lock_guard<std::mutex> guard(state_->mutex);
  state_->is_wanted = false;
  state_->ended.notify_all();
}

std::vector<SocketAddress> Resolver::find(std::size_t index, std::string* error) const {
  const std::lock_guard<std::mutex> guard(state_->mutex);
  const State::One& one = state_->all[index];
  if (one.found.empty()) *error = one.error;
  return one.found;
}

void Resolver::ask(const std::shared_ptr<State>& state) {
  for (;;) {
    bool is_complete = true;
    for (State::One& one : state->all) {  // this thread alone writes to them
      if (!one.found.empty()) continue;
      std::string error;
      std::vector<SocketAddress> found = state->resolve(one.address, &error);
      const std::lock_guard<std::mutex> guard(state->mutex);
      if (!state->is_wanted) return;
      is_complete = is_complete && !found.empty();
      one.found = std::move(found);
      one.error = error;
    }
    std::unique_lock<std::mutex> lock(state->mutex);
    if (is_complete || state->ended.wait_for(lock, kBetweenQuestions, [&] { return !state->is_wanted; })) return;
  }
}

}  // namespace tfdist::collectives
