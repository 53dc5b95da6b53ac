// Wrong keys, other starts of the job, port scanners, connections that say nothing.

#include <poll.h>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "members.h"
#include "numbers.h"

namespace tfdist::collectives::checks {
namespace {

Descriptor connect_to(const Address& address) {
  std::string error;
  Descriptor connection = begin_connect(resolve(address, &error).at(0), &error);
  pollfd event{connection.get(), POLLOUT, 0};
  poll(&event, 1, 1000);
  return connection;
}

// What comes on a connection until the other closes it; "open" behind it if it does not.
std::string rest_of(const Descriptor& connection, int milliseconds) {
  std::string text;
  for (;;) {
    pollfd event{connection.get(), POLLIN, 0};
    if (poll(&event, 1, milliseconds) <= 0) return text + "open";
    char bytes[256];
    const ssize_t count = recv(connection.get(), bytes, sizeof bytes, 0);
    if (count <= 0) return text;
    text.append(bytes, static_cast<std::size_t>(count));
  }
}

void check_strangers() {
  Job job(3);
  Membership first = job.membership(0);
  first.handshake_seconds = 0.3;
  std::vector<std::thread> threads;
  std::atomic<bool> scanned{false};
  const auto member = [&](int rank) {
    Transport transport(rank == 0 ? first : job.membership(rank), std::move(job.listeners[rank]));
    while (rank > 0 && !scanned) {
      transport.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Members members{{0, 1, 2}, rank};
    std::vector<float> data = samples<float>(rank, 1009);
    const std::string error =
        run(transport, all_reduce({transport, members, 1}, Algorithm::kRing, data.data(), 1009, DType::kFloat32, Op::kSum));
    require(error.empty() && same(data, reduced<float>(3, 1009, Op::kSum)), "strangers disturb nobody: " + error);
    transport.finish(20);
  };
  threads.emplace_back(member, 0);

  // Rank 2 has not begun: so member 0 keeps listening.
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(job.addresses[0]));
  threads.emplace_back(member, 1);
  for (int i = 0; i < 50; ++i) connect_to(job.addresses[0]);  // and closed at once
  {
    const Descriptor garbage = connect_to(job.addresses[0]);
    const std::string noise(5000, 'G');
    send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    require(!has(rest_of(garbage, 5000), "open"), "who sends garbage is dropped");
  }
  require(rest_of(silent.back(), 5000).size() == sizeof(Challenge), "who says nothing is dropped");

  const auto try_to_join = [&](const std::function<void(Membership*)>& change) {
    Membership other = job.membership(2);
    change(&other);
    other.join_seconds = 0.3;
    other.peers = {0};
    Transport stranger(other, Descriptor());
    Request request;
    char byte = 0;
    stranger.receive(0, {9, 9}, &byte, 1, &request);
    const Clock::time_point begin = Clock::now();
    while (!request.failed() && seconds_since(begin) < 20) {
      stranger.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return request.error();
  };
  const std::string wrong_key = try_to_join([](Membership* other) { other->key = "0123456789abcdeF"; });
  require(has(wrong_key, "member 0 (127.0.0.1:") && has(wrong_key, "it refuses this member"), "wrong key: " + wrong_key);
  require(has(try_to_join([](Membership* other) { other->key = ""; }), "refuses"), "no key");
  require(has(try_to_join([](Membership* other) { other->generation = 0; }), "refuses"), "the start before this one");
  require(has(try_to_join([](Membership* other) { other->members.pop_back(); other->rank = 1; }), "refuses"), "another size");

  scanned = true;
  threads.emplace_back(member, 2);
  for (std::thread& thread : threads) thread.join();
}

// A listener that has not the key must not pass for a member: it learns nothing but an HMAC of its own random number.
void check_impostor() {
  std::string error;
  const Descriptor listener = listen_on({"127.0.0.1", 0}, &error);
  Membership membership;
  membership.rank = 1;
  membership.members = {{"127.0.0.1", port_of(listener)}, {"127.0.0.1", 1}};
  membership.key = kKey;
  membership.join_seconds = 0.5;
  Transport transport(membership, Descriptor());
  std::thread impostor([&] {
    pollfd event{listener.get(), POLLIN, 0};
    poll(&event, 1, 5000);
    const Descriptor connection(accept(listener.get(), nullptr, nullptr));
    const Challenge challenge;
    send(connection.get(), &challenge, sizeof challenge, MSG_NOSIGNAL);
    Answer answer;
    recv(connection.get(), &answer, sizeof answer, MSG_WAITALL);
    const Welcome welcome;
    send(connection.get(), &welcome, sizeof welcome, MSG_NOSIGNAL);
    require(rest_of(connection, 5000).empty(), "an impostor is told nothing");
  });
  Request request;
  char byte = 0;
  transport.receive(0, {1, 1}, &byte, 1, &request);
  while (!request.failed() && !request.done()) {
    transport.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(has(request.error(), "did not join within 0"), "an impostor is no member: " + request.error());
  impostor.join();
}

}  // namespace

void check_strangers_and_impostors() {
  check_strangers();
  check_impostor();
}

}  // namespace tfdist::collectives::checks
