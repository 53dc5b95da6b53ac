// Checks the collectives over TCP by themselves, without TensorFlow: `check_tcp NAME...`.
//
//   pure        digests, plans, the choice of an algorithm
//   algorithms  every operation of 1 to 7 members, of every size, dtype and algorithm
//   orders      members that come to their operations in different orders
//   strangers   wrong keys, other starts of the job, port scanners, connections that say nothing
//   failures    members that die, that stop, that give up, that call with other shapes; and starting again
//   speed       prints times; `check_tcp member RANK ADDRESS PORT ADDRESS PORT...` does so as one of several hosts
//
// Members are threads, or processes where one is killed or stopped. It ends with 0 if everything was right, and says what
// was not.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "../../tfdist/native/collectives/cost.h"
#include "../../tfdist/native/collectives/measure.h"
#include "../../tfdist/native/collectives/tcp.h"

namespace {

using namespace tfdist::collectives;

const std::string kKey = "0123456789abcdef";
const std::vector<Algorithm> kAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing,
                                            Algorithm::kHalvingDoubling, Algorithm::kDoubleTree};
std::atomic<int> wrong{0};

void require(bool is_right, const std::string& what) {
  if (is_right) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

double seconds_since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

// ---- members

// The listening sockets of all members, and what each has to know.
struct Job {
  std::vector<Descriptor> listeners;
  std::vector<Address> addresses;
  std::uint64_t generation = 1;
  std::string key = kKey;
  double join_seconds = 20;

  explicit Job(int members, const std::string& host = "127.0.0.1", const std::vector<Address>& taken = {}) {
    for (int rank = 0; rank < members; ++rank) {
      std::string error;
      const std::uint16_t port = taken.empty() ? std::uint16_t{0} : taken[rank].port;
      listeners.push_back(listen_on({host, port}, &error));
      require(static_cast<bool>(listeners.back()), "a port to listen on: " + error);
      addresses.push_back({host, port_of(listeners.back())});
    }
  }

  Membership membership(int rank) const {
    Membership membership;
    membership.rank = rank;
    membership.members = addresses;
    membership.key = key;
    membership.generation = generation;
    membership.join_seconds = join_seconds;
    return membership;
  }
};

using Operations = std::vector<std::unique_ptr<Operation>>;

// Moves operations on until all are done or one has failed; returns its error.
std::string run(Transport& transport, Operations& operations, double limit = 60) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    bool moved = transport.progress(), running = false;
    for (const auto& operation : operations) {
      moved |= operation->advance();
      if (operation->state() == State::kFailed) return operation->error();
      running |= operation->state() == State::kRunning;
    }
    if (!running) return "";
    if (seconds_since(begin) > limit) return "hangs";
    if (moved) continue;
    pollfd event{transport.wait_descriptor(), POLLIN, 0};
    poll(&event, 1, 20);
  }
}

std::string run(Transport& transport, std::unique_ptr<Operation> operation, double limit = 60) {
  Operations operations;
  operations.push_back(std::move(operation));
  return run(transport, operations, limit);
}

using Member = std::function<void(Transport&, Members)>;

// Runs all members, each in a thread.
void with_members(Job job, const Member& member) {
  std::vector<std::thread> threads;
  const int count = static_cast<int>(job.addresses.size());
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      Transport transport(job.membership(rank), std::move(job.listeners[rank]));
      Members members;
      members.mine = rank;
      for (int other = 0; other < count; ++other) members.ranks.push_back(other);
      member(transport, members);
      transport.finish(20);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- pure

std::string hex(const Digest& digest) {
  std::string text;
  char two[3];
  for (const std::uint8_t byte : digest) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

void check_digests() {
  require(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "SHA-256 of nothing");
  require(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256 of abc");
  require(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", "SHA-256 of 56 bytes");
  require(hex(sha256(std::string(1000000, 'a'))) ==
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "SHA-256 of a million bytes");
  // RFC 4231, cases 1, 2, 3, 6 and 7
  require(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", "RFC 4231, 1");
  require(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "RFC 4231, 2");
  require(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe", "RFC 4231, 3");
  require(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54", "RFC 4231, 6");
  require(hex(hmac_sha256(std::string(131, '\xaa'),
                          "This is a test using a larger than block-size key and a larger than block-size data. The "
                          "key needs to be hashed before being used by the HMAC algorithm.")) ==
              "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2", "RFC 4231, 7");
}

void check_trees() {
  for (int members = 1; members <= 40; ++members) {
    int with_children_in_both = 0;
    for (int tree = 0; tree < 2; ++tree) {
      int tops = 0;
      for (int rank = 0; rank < members; ++rank) {
        int depth = 0, above = rank;
        while (tree_place(tree, above, members).parent >= 0 && depth <= members) {
          above = tree_place(tree, above, members).parent;
          ++depth;
        }
        const TreePlace place = tree_place(tree, rank, members);
        tops += place.parent < 0;
        require(depth <= 2 * std::ceil(std::log2(members + 1)), "a tree is flat");
        require(place.children.size() <= 2, "nobody has more than two children");
        with_children_in_both += tree == 1 && !place.children.empty() && !tree_place(0, rank, members).children.empty();
      }
      require(tops == 1, "a tree has one top");
    }
    require(with_children_in_both <= 1, "who has children in one tree has none in the other");
  }
}

// Carries out the plans of all members on lists of names, one step at a time, and looks that each send meets a receive.
void check_plans() {
  for (int members = 1; members <= 17; ++members) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const bool rounds : {false, true}) {
        std::map<std::vector<std::size_t>, int> open;
        std::size_t most = 0;
        for (int rank = 0; rank < members; ++rank) {
          std::size_t sent = 0;
          for (const Step& step : all_reduce_plan(algorithm, rank, members, 1000, rounds)) {
            const auto message = [&](int from, int to) {
              return std::vector<std::size_t>{static_cast<std::size_t>(from), static_cast<std::size_t>(to), step.tag,
                                              step.begin, step.count};
            };
            if (step.action == Action::kSend) {
              ++open[message(rank, step.member)];
              sent += step.count;
            } else if (step.action == Action::kCombine) {
              for (int other = 0; other < members; ++other) open[message(other, rank)] -= other != rank;
            } else {
              --open[message(step.member, rank)];
            }
          }
          most = std::max(most, sent);
        }
        for (const auto& [message, count] : open) require(count == 0, "each message is sent once and received once");
        if (algorithm == Algorithm::kRing) {
          require(most <= 2 * (1000 * (members - 1u) / members + members), "a ring sends 2 S (n - 1) / n");
        }
      }
    }
  }
}

void check_choice() {
  const Line slow{1e-3, 12.5e6}, fast{20e-6, 1.25e9};
  for (const Line& line : {slow, fast}) {
    for (int members = 2; members <= 64; ++members) {
      for (std::size_t bytes = 1; bytes <= (std::size_t{1} << 30); bytes *= 4) {
        const Algorithm chosen = choose(bytes, members, line);
        for (const Algorithm other : kAlgorithms) {
          require(all_reduce_seconds(chosen, bytes, members, line, false) <=
                      1.06 * all_reduce_seconds(other, bytes, members, line, false),
                  "what is chosen costs no more than any other");
        }
      }
    }
    require(choose(64, 2, line) == Algorithm::kOneShot, "a few bytes travel once");
    require(choose(1 << 30, 7, line) == Algorithm::kRing, "many bytes go around a ring");
    require(choose(1 << 30, 8, line, true) == Algorithm::kRing, "and so do those of 16-bit floats");
  }
  require(choose(256 << 10, 64, {5e-3, 1.25e9}) == Algorithm::kTwoShot, "latency counts where lines are long");
}

// ---- algorithms

template <typename T>
T number(double value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BHalf>) {
    T half;
    internal::narrow(static_cast<float>(value), &half);
    return half;
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(static_cast<int>(value) % 2)};
  } else {
    return static_cast<T>(value);
  }
}

int sample(int rank, std::size_t i) { return static_cast<int>((i * 7 + 3 * static_cast<std::size_t>(rank) + i / 64) % 16); }

template <typename T>
std::vector<T> samples(int rank, std::size_t count) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = number<T>(sample(rank, i));
  return numbers;
}

template <typename T>
std::vector<T> reduced(int members, std::size_t count, Op op) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    int result = sample(0, i), any = sample(0, i) % 2, all = any;
    for (int rank = 1; rank < members; ++rank) {
      const int next = sample(rank, i);
      result = op == Op::kSum ? result + next : op == Op::kMin ? std::min(result, next) : std::max(result, next);
      any |= next % 2;
      all &= next % 2;
    }
    numbers[i] = number<T>(std::is_same_v<T, Bool> ? (op == Op::kMin ? all : any) : result);
  }
  return numbers;
}

template <typename T>
bool same(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}

template <typename T>
void check_all_reduce(Transport& transport, const Members& members, DType dtype, std::size_t count, std::uint64_t* id) {
  for (const Op op : {Op::kSum, Op::kMin, Op::kMax}) {
    const std::vector<T> wanted = reduced<T>(members.size(), count, op);
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<T> data = samples<T>(members.mine, count);
      const std::string error =
          run(transport, all_reduce({transport, members, ++*id}, algorithm, data.data(), count, dtype, op));
      require(error.empty() && same(data, wanted),
              "all_reduce " + std::to_string(static_cast<int>(algorithm)) + " of " + std::to_string(count) + " of dtype " +
                  std::to_string(static_cast<int>(dtype)) + " on " + std::to_string(members.size()) + ": " + error);
    }
  }
}

// Numbers whose sums depend on the order: what counts is that all members, and two runs, have the same.
void check_same_bits(int count_of_members) {
  constexpr std::size_t kCount = 10007;
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<float>> results(2 * static_cast<std::size_t>(count_of_members));
    for (int run_number = 0; run_number < 2; ++run_number) {
      with_members(Job(count_of_members), [&](Transport& transport, const Members& members) {
        std::mt19937 random(static_cast<unsigned>(members.mine));
        std::vector<float> data(kCount);
        for (float& one : data) one = static_cast<float>(random()) / 1e5f;
        const std::string error =
            run(transport, all_reduce({transport, members, 1}, algorithm, data.data(), kCount, DType::kFloat32, Op::kSum));
        require(error.empty(), error);
        results[static_cast<std::size_t>(run_number * count_of_members + members.mine)] = data;
      });
    }
    for (const auto& result : results) require(same(result, results[0]), "all members and all runs have the same bits");
  }
}

// 2048 + 1 + 1 + 1 + 1: each sum rounded to float16 is 2048, and the sum rounded once is 2052.
void check_rounded_once() {
  with_members(Job(5), [](Transport& transport, const Members& members) {
    std::uint64_t id = 0;
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<Half> data(77, number<Half>(members.mine == 0 ? 2048 : 1));
      const std::string error =
          run(transport, all_reduce({transport, members, ++id}, algorithm, data.data(), 77, DType::kFloat16, Op::kSum));
      require(error.empty() && same(data, std::vector<Half>(77, number<Half>(2052))), "16-bit floats are rounded once");
    }
  });
}

void check_other_operations(Transport& transport, const Members& members, std::size_t count, std::uint64_t* id) {
  const std::size_t n = static_cast<std::size_t>(members.size()), mine = static_cast<std::size_t>(members.mine);
  const std::string where = " of " + std::to_string(count) + " on " + std::to_string(n) + ": ";
  std::string error;

  std::vector<std::size_t> counts;
  const Parts parts = even_parts(count, members.size());
  for (std::size_t r = 0; r < n; ++r) counts.push_back(parts[r + 1] - parts[r]);
  std::vector<float> data = samples<float>(members.mine, count), wanted = data;
  const std::vector<float> sums = reduced<float>(members.size(), count, Op::kSum);
  std::copy(sums.begin() + parts[mine], sums.begin() + parts[mine + 1], wanted.begin() + parts[mine]);
  error = run(transport, reduce_scatter({transport, members, ++*id}, data.data(), counts, DType::kFloat32, Op::kSum));
  require(error.empty() && same(data, wanted), "reduce_scatter" + where + error);

  for (const bool uneven : {false, true}) {
    std::vector<std::size_t> bytes;
    for (std::size_t r = 0; r < n; ++r) bytes.push_back(!uneven ? count : r == 1 ? 5 * count : r == 2 ? 0 : count / (r + 1));
    std::vector<char> all, some;
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < bytes[r]; ++i) {
        all.push_back(static_cast<char>(sample(static_cast<int>(r), i)));
        some.push_back(r == mine ? all.back() : '\x7f');
      }
    }
    error = run(transport, all_gather({transport, members, ++*id}, some.data(), bytes));
    require(error.empty() && some == all, "all_gather" + where + error);
  }

  for (int root = 0; root < members.size(); ++root) {
    std::vector<char> value(count);
    if (root == members.mine) value = samples<char>(root, count);
    error = run(transport, broadcast({transport, members, ++*id}, value.data(), count, root));
    require(error.empty() && value == samples<char>(root, count), "broadcast" + where + error);
  }

  // member r has r + s + count bytes for member s, none where they are 3 in all
  const auto size = [&](std::size_t from, std::size_t to) { return from + to == 3 ? 0 : from + 2 * to + count; };
  std::vector<std::size_t> out_bytes, in_bytes;
  std::vector<char> out, in, expected;
  for (std::size_t r = 0; r < n; ++r) {
    out_bytes.push_back(size(mine, r));
    in_bytes.push_back(size(r, mine));
    out.insert(out.end(), size(mine, r), static_cast<char>(10 * mine + r));
    expected.insert(expected.end(), size(r, mine), static_cast<char>(10 * r + mine));
  }
  in.resize(expected.size());
  error = run(transport, all_to_all({transport, members, ++*id}, out.data(), out_bytes, in.data(), in_bytes));
  require(error.empty() && in == expected, "all_to_all" + where + error);

  if (n > 1) {
    const int next = (members.mine + 1) % members.size(), last = (members.mine + members.size() - 1) % members.size();
    std::vector<char> from_last(count), to_next = samples<char>(members.mine, count);
    Operations both;
    both.push_back(receive({transport, members, ++*id}, from_last.data(), count, last));
    both.push_back(send({transport, members, *id}, to_next.data(), count, next));
    error = run(transport, both);
    require(error.empty() && from_last == samples<char>(last, count), "send and receive" + where + error);
  }
}

void check_algorithms() {
  for (const int count : {1, 2, 3, 4, 5, 7}) {
    with_members(Job(count), [count](Transport& transport, const Members& members) {
      std::uint64_t id = 0;
      for (const int size : {0, 1, count - 1, count, count + 1, 1009, count < 4 ? (1 << 20) + 1 : 100003}) {
        check_all_reduce<float>(transport, members, DType::kFloat32, static_cast<std::size_t>(size), &id);
        check_other_operations(transport, members, static_cast<std::size_t>(size), &id);
      }
      for (const std::size_t size : {1, 20011}) {
        check_all_reduce<Half>(transport, members, DType::kFloat16, size, &id);
        check_all_reduce<BHalf>(transport, members, DType::kBFloat16, size, &id);
        check_all_reduce<double>(transport, members, DType::kFloat64, size, &id);
        check_all_reduce<std::int8_t>(transport, members, DType::kInt8, size, &id);
        check_all_reduce<std::int64_t>(transport, members, DType::kInt64, size, &id);
        check_all_reduce<std::uint16_t>(transport, members, DType::kUint16, size, &id);
        check_all_reduce<Bool>(transport, members, DType::kBool, size, &id);
      }
      Line line{};
      require(run(transport, measure_line({transport, members, ++id}, &line)).empty(), "the line can be measured");
      if (count == 1) return;
      require(line.latency_seconds > 0 && line.latency_seconds < 1 && line.bytes_per_second > 1e6, "the line is plausible");
      std::vector<double> most = {line.latency_seconds, line.bytes_per_second}, least = most;
      run(transport, all_reduce({transport, members, ++id}, Algorithm::kRing, most.data(), 2, DType::kFloat64, Op::kMax));
      run(transport, all_reduce({transport, members, ++id}, Algorithm::kRing, least.data(), 2, DType::kFloat64, Op::kMin));
      require(same(most, least), "all members have measured the same");
    });
  }
  for (const int members : {2, 3, 5}) check_same_bits(members);
  check_rounded_once();
  with_members(Job(3, "::1"), [](Transport& transport, const Members& members) {
    std::uint64_t id = 0;
    check_all_reduce<float>(transport, members, DType::kFloat32, 1009, &id);
  });
  with_members(Job(4, "localhost"), [](Transport& transport, const Members& members) {
    // groups that overlap: the first and the last three
    std::vector<float> first = samples<float>(members.mine, 5000), last = first;
    Operations operations;
    if (members.mine < 3) {
      operations.push_back(all_reduce({transport, {{0, 1, 2}, members.mine}, 1}, Algorithm::kRing, first.data(), 5000,
                                      DType::kFloat32, Op::kSum));
    }
    if (members.mine > 0) {
      operations.push_back(all_reduce({transport, {{1, 2, 3}, members.mine - 1}, 2}, Algorithm::kDoubleTree, last.data(),
                                      5000, DType::kFloat32, Op::kMax));
    }
    require(run(transport, operations).empty(), "groups may overlap");
    if (members.mine < 3) require(same(first, reduced<float>(3, 5000, Op::kSum)), "the sum over the first group");
  });
}

// ---- orders

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

// ---- strangers

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

// ---- failures

// All-reduces without end, until one fails; returns its error.
std::string run_until_it_fails(Transport& transport, const Members& members, std::size_t count, double timeout) {
  for (std::uint64_t id = 1;; ++id) {
    std::vector<float> data = samples<float>(members.mine, count);
    const std::string error =
        run(transport, all_reduce({transport, members, id, timeout}, kAlgorithms[id % kAlgorithms.size()], data.data(),
                                  count, DType::kFloat32, Op::kSum));
    if (!error.empty()) return error;
    require(same(data, reduced<float>(members.size(), count, Op::kSum)), "sums until somebody dies");
  }
}

// Four processes; one gets a signal in the middle. The error of every other names it.
void check_signal(int signal, std::size_t count) {
  constexpr int kMembers = 4, kVictim = 2;
  Job job(kMembers);
  int ready[2];
  require(pipe(ready) == 0, "a pipe");
  std::vector<pid_t> children;
  for (int rank = 0; rank < kMembers; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      Descriptor listener = std::move(job.listeners[rank]);
      job.listeners.clear();  // of the others
      Transport transport(job.membership(rank), std::move(listener));
      const Members members{{0, 1, 2, 3}, rank};
      std::vector<float> data(10);
      run(transport, all_reduce({transport, members, 0}, Algorithm::kRing, data.data(), 10, DType::kFloat32, Op::kSum));
      if (write(ready[1], "r", 1) != 1) _exit(9);
      const std::string error = run_until_it_fails(transport, members, count, 1.5);
      transport.abort(error);
      const bool names = has(error, "member 2 (127.0.0.1:" + std::to_string(job.addresses[kVictim].port) + ")");
      const bool says = has(error, signal == SIGKILL ? "has died" : "has not answered");
      if (!names || !says) std::fprintf(stderr, "rank %d: %s\n", rank, error.c_str());
      _exit(names && says ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int i = 0; i < kMembers; ++i) {
    char byte;
    require(read(ready[0], &byte, 1) == 1, "members begin");
  }
  usleep(static_cast<useconds_t>(std::random_device()() % 20000));
  kill(children[kVictim], signal);
  for (int rank = 0; rank < kMembers; ++rank) {
    if (rank == kVictim) continue;
    int status = -1;
    waitpid(children[rank], &status, 0);
    require(status == 0, "member " + std::to_string(rank) + " names the one with signal " + std::to_string(signal));
  }
  kill(children[kVictim], SIGKILL);
  waitpid(children[kVictim], nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

// One gives up, in turns in the middle of large messages, and the others learn why; then all start again on the same
// ports.
void check_abort_and_start_again() {
  std::vector<Address> addresses;
  for (std::uint64_t generation = 1; generation <= 5; ++generation) {
    const Clock::time_point begin = Clock::now();
    Job job(3, "127.0.0.1", addresses);
    job.generation = generation;
    addresses = job.addresses;
    std::atomic<double> started{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Transport transport(job.membership(rank), std::move(job.listeners[rank]));
        const Members members{{0, 1, 2}, rank};
        std::vector<float> data = samples<float>(rank, 1009);
        std::string error = run(transport, all_reduce({transport, members, 1}, Algorithm::kRing, data.data(), 1009,
                                                      DType::kFloat32, Op::kSum));
        require(error.empty() && same(data, reduced<float>(3, 1009, Op::kSum)), "starting again: " + error);
        started = std::max(started.load(), seconds_since(begin));
        const bool is_large = generation % 2 == 0;
        data = std::vector<float>(is_large ? 4 << 20 : 100);
        Operations operations;
        operations.push_back(all_reduce({transport, members, 2}, Algorithm::kRing, data.data(), data.size(),
                                        DType::kFloat32, Op::kSum));
        if (rank == 1) {
          for (int i = 0; i < (is_large ? 200 : 0); ++i) {
            transport.progress();
            operations[0]->advance();
          }
          transport.abort("the user has interrupted it");
          operations[0]->advance();
          require(operations[0]->state() == State::kFailed, "an aborted operation has failed");
          return;
        }
        error = run(transport, operations);
        // A message that is half sent may be too long for the time there is to say why.
        require(has(error, "has given up: the user has interrupted it") || (is_large && has(error, "has died")),
                "the others learn why: " + error);
        transport.abort(error);
      });
    }
    for (std::thread& thread : threads) thread.join();
    require(started < 5, "starting again is quick");
    std::printf("started generation %d in %.0f ms\n", static_cast<int>(generation), 1000 * started);
  }
}

void check_other_shapes() {
  with_members(Job(2), [](Transport& transport, const Members& members) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{1} << 20}) {
      std::vector<float> data(count + static_cast<std::size_t>(members.mine));
      Operations operations;
      operations.push_back(all_reduce({transport, members, count, 2}, Algorithm::kOneShot, data.data(), data.size(),
                                      DType::kFloat32, Op::kSum));
      const std::string error = run(transport, operations);
      require(has(error, "bytes where this member expects") || has(error, "not done within 2 s"), "other shapes: " + error);
    }
  });
}

// A member that lives and does not come is named too, and is not said to be stopped.
void check_late_member() {
  with_members(Job(3), [](Transport& transport, const Members& members) {
    const Clock::time_point begin = Clock::now();
    if (members.mine != 1) {
      float data[3] = {};
      const std::string error = run(
          transport, all_reduce({transport, members, 1, 1.2}, Algorithm::kTwoShot, data, 3, DType::kFloat32, Op::kSum));
      require(has(error, "waiting for") && has(error, "member 1") && has(error, "answers"), "a late member: " + error);
    }
    while (seconds_since(begin) < 3) {  // all live until all have given up
      transport.progress();
      pollfd event{transport.wait_descriptor(), POLLIN, 0};
      poll(&event, 1, 20);
    }
  });
}

// ---- speed

// The median time of an all_reduce whose numbers are new each time, beside a memcpy of as many bytes.
void print_speed(Transport& transport, const Members& members, const std::vector<std::size_t>& sizes) {
  std::uint64_t id = 0;
  Line line{};
  require(run(transport, measure_line({transport, members, ++id}, &line)).empty(), "the line can be measured");
  if (members.mine == 0) std::printf("measured %.3f ms, %.4f GB/s\n", 1e3 * line.latency_seconds, line.bytes_per_second / 1e9);
  for (const std::size_t bytes : sizes) {
    const Algorithm automatic = choose(bytes, members.size(), line);
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<float> data(bytes / 4), copy(bytes / 4);
      std::vector<double> times, copies;
      for (int i = 0; i < (bytes > (1 << 20) ? 7 : 30); ++i) {
        std::fill(data.begin(), data.end(), static_cast<float>(i));
        const Clock::time_point begin = Clock::now();
        const std::string error = run(transport, all_reduce({transport, members, ++id, 60}, algorithm, data.data(), data.size(),
                                                            DType::kFloat32, Op::kSum));
        require(error.empty() && data[0] == static_cast<float>(i * members.size()), "the sum is right: " + error);
        times.push_back(seconds_since(begin));
        const Clock::time_point copy_begin = Clock::now();
        std::memcpy(copy.data(), data.data(), bytes);
        copies.push_back(seconds_since(copy_begin));
      }
      std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
      std::nth_element(copies.begin(), copies.begin() + copies.size() / 2, copies.end());
      if (members.mine != 0) continue;
      std::printf("%9zu bytes, algorithm %d%s: %9.3f ms, %7.4f GB/s; memcpy %7.3f ms\n", bytes, static_cast<int>(algorithm),
                  algorithm == automatic ? " (chosen)" : "         ", 1e3 * times[times.size() / 2],
                  static_cast<double>(bytes) / times[times.size() / 2] / 1e9, 1e3 * copies[copies.size() / 2]);
      std::fflush(stdout);
    }
  }
}

const std::vector<std::size_t> kSizes = {4 << 10, 256 << 10, 4 << 20, 16 << 20, 64 << 20};

// One member of several hosts: `check_tcp member RANK ADDRESS PORT ADDRESS PORT...`.
int be_member(const std::vector<std::string>& words) {
  Membership membership;
  membership.rank = std::stoi(words.at(0));
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
    membership.members.push_back({words[i], static_cast<std::uint16_t>(std::stoi(words[i + 1]))});
  }
  membership.key = kKey;
  std::string error;
  Transport transport(membership, listen_on(membership.members.at(static_cast<std::size_t>(membership.rank)), &error));
  require(error.empty(), error);
  Members members;
  members.mine = membership.rank;
  for (int rank = 0; rank < transport.size(); ++rank) members.ranks.push_back(rank);
  print_speed(transport, members, kSizes);
  transport.finish(20);
  return wrong == 0 ? 0 : 1;
}

const std::map<std::string, std::function<void()>> kChecks = {
    {"pure",
     [] {
       check_digests();
       check_trees();
       check_plans();
       check_choice();
     }},
    {"algorithms", check_algorithms},
    {"orders",
     [] {
       check_shuffled_operations();
       check_last_message_first();
       check_credit_comes_back();
     }},
    {"strangers",
     [] {
       check_strangers();
       check_impostor();
     }},
    {"failures",
     [] {
       check_signal(SIGKILL, 1009);
       check_signal(SIGKILL, 1 << 20);
       check_signal(SIGSTOP, 100003);
       check_abort_and_start_again();
       check_other_shapes();
       check_late_member();
     }},
    {"speed",
     [] {
       with_members(Job(2), [](Transport& transport, const Members& members) { print_speed(transport, members, kSizes); });
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "member") return be_member({argv + 2, argv + argc});
  for (int i = 1; i < argc; ++i) {
    const auto check = kChecks.find(argv[i]);
    require(check != kChecks.end(), std::string("there is no check ") + argv[i]);
    if (check == kChecks.end()) continue;
    const Clock::time_point begin = Clock::now();
    check->second();
    std::printf("%s: %s, %.1f s\n", argv[i], wrong == 0 ? "ok" : "wrong", seconds_since(begin));
    std::fflush(stdout);
  }
  return argc > 1 && wrong == 0 ? 0 : 1;
}
