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
    bool is_name;
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
    std::vector<SocketAddress> number = resolve_number(address);
    const bool is_name = number.empty();
    has_names = has_names || is_name;
    state_->all.push_back({address, is_name, std::move(number)});
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
    for (State::One& one : state->all) {  // this thread alone writes to them
      if (!one.is_name) continue;
      std::string error;
      std::vector<SocketAddress> found = state->resolve(one.address, &error);
      const std::lock_guard<std::mutex> guard(state->mutex);
      if (!state->is_wanted) return;
      if (!found.empty()) one.found = std::move(found);
      one.error = error;
    }
    std::unique_lock<std::mutex> lock(state->mutex);
    if (state->ended.wait_for(lock, kBetweenQuestions, [&] { return !state->is_wanted; })) return;
  }
}

}  // namespace tfdist::collectives
