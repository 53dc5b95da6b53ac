// Members that come to their operations in different orders.

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "members.h"
#include "numbers.h"

namespace tfdist::collectives::checks {
namespace {

// Every member begins the same operations at once, in an order of its own.
void check_shuffled_operations() {
  with_members(Job(4), [](Transport& transport, const Members& members) {
    constexpr int kOperations = 40;
    std::vector<std::vector<float>> data;
    std::vector<int> order;
    for (int i = 0; i < kOperations; ++i) {
      data.push_back(samples<float>(members.mine, i % 4 == 0 ? 200003 : static_cast<std::size_t>(i) * 331));
      order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(members.mine)));
    Operations operations;
    for (const int i : order) {
      operations.push_back(all_reduce({transport, members, static_cast<std::uint64_t>(i)}, kAlgorithms[i % kAlgorithms.size()],
                                      data[i].data(), data[i].size(), DType::kFloat32, Op::kSum));
    }
    const std::string error = run(transport, operations);
    require(error.empty(), "operations in different orders: " + error);
    for (const auto& one : data) require(same(one, reduced<float>(4, one.size(), Op::kSum)), "sums in different orders");
  });
}

// One sends many messages of all sizes at once; the other takes the last one first, each before it asks for the next. A
// connection that stopped to read when nobody wants what comes would wait for ever.
void check_last_message_first() {
  with_members(Job(2), [](Transport& transport, const Members& members) {
    constexpr int kMessages = 100;
    const auto size = [](int i) { return i % 10 == 0 ? std::size_t{3} << 20 : i % 3 == 0 ? kEagerBytes : 1000u; };
    if (members.mine == 0) {
      std::vector<std::vector<char>> data;
      Operations operations;
      for (int i = 0; i < kMessages; ++i) {
        data.emplace_back(size(i), static_cast<char>(i));
        operations.push_back(send({transport, members, static_cast<std::uint64_t>(i)}, data[i].data(), size(i), 1));
      }
      require(run(transport, operations).empty(), "messages are sent");
    } else {
      for (int i = kMessages - 1; i >= 0; --i) {
        std::vector<char> data(size(i));
        const std::string error =
            run(transport, receive({transport, members, static_cast<std::uint64_t>(i)}, data.data(), size(i), 0));
        require(error.empty() && data == std::vector<char>(size(i), static_cast<char>(i)), "the last message first: " + error);
      }
    }
  });
}

// More small messages than the credit, while the receiver looks at none but lives.
void check_credit_comes_back() {
  with_members(Job(2), [](Transport& transport, const Members& members) {
    constexpr std::size_t kSize = 50000;
    std::vector<char> data(kSize, 'x');
    for (std::uint64_t i = 0; i < 200; ++i) {
      const std::string error = members.mine == 0 ? run(transport, send({transport, members, i}, data.data(), kSize, 1))
                                                  : run(transport, receive({transport, members, i}, data.data(), kSize, 0));
      require(error.empty(), "small messages without end: " + error);
    }
  });
}

// A name server that does not answer keeps nobody waiting but for the member whose name it is. Its first answer, by which
// the name still leads to another host, is not its last.
void check_slow_names() {
  Job job(3);
  const Address named{"a.name", job.addresses[0].port};
  std::promise<void> answer;  // until it is there, the name server says nothing
  const std::shared_future<void> answered = answer.get_future().share();
  std::vector<std::thread> threads;
  std::atomic<int> met{0};
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Membership membership = job.membership(rank);
      if (rank > 0) membership.members[0] = named;
      membership.resolve = [answered, is_first = true](const Address& address, std::string* error) mutable {
        answered.wait();
        return resolve({std::exchange(is_first, false) ? "127.0.0.2" : "127.0.0.1", address.port}, error);
      };
      Transport transport(membership, std::move(job.listeners[rank]));
      float data = 1;
      if (rank > 0) {
        const std::string error = run(
            transport, all_reduce({transport, {{1, 2}, rank - 1}, 1}, Algorithm::kOneShot, &data, 1, DType::kFloat32, Op::kSum));
        require(error.empty() && data == 2, "a name that is not known yet keeps others waiting: " + error);
        if (++met == 2) answer.set_value();
      }
      const std::string error = run(
          transport, all_reduce({transport, {{0, 1, 2}, rank}, 2}, Algorithm::kOneShot, &data, 1, DType::kFloat32, Op::kSum));
      require(error.empty() && data == 5, "a name that is known at last: " + error);
      transport.finish(20);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void check_orders() {
  check_slow_names();
  check_shuffled_operations();
  check_last_message_first();
  check_credit_comes_back();
}

}  // namespace tfdist::collectives::checks
