// Checks the collectives in shared memory by themselves, without TensorFlow: `check_shared_memory NAME [TIMES]`.
//
//   threads    members are threads, for ThreadSanitizer: every operation, in orders that differ between members
//   hosts      the same over two hosts that are pretended, with TCP between them
//   processes  the same among processes, over a file
//   kill       processes, one of which is killed at a random moment, or stopped: the others' errors name it
//   restart    aborts, and starts again among the same processes
//   speed      prints times of all-reduces beside those of memcpy
//
// It ends with 0 if everything was right, and says what was not.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "../../tfdist/native/collectives/engine.h"

namespace {

using namespace tfdist::collectives;
using Clock = std::chrono::steady_clock;

std::atomic<int> wrong{0};

void complain(const std::string& what) {
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Waits for operations that were submitted to an engine.
class Results {
 public:
  Engine::Done next() {
    const std::lock_guard<std::mutex> guard(mutex_);
    ++open_;
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (error_.empty()) error_ = error;
      --open_;
      changed_.notify_all();
    };
  }

  std::string wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_ == 0; })) {
      std::fprintf(stderr, "wrong: an operation hangs\n");
      std::_Exit(3);
    }
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  std::string error_;
};

// All members on one host.
Engine::Members here(int rank, std::size_t members) {
  std::vector<std::uint32_t> indexes(members);
  std::iota(indexes.begin(), indexes.end(), 0);
  return {rank, std::vector<int>(members), indexes};
}

float value(int rank, std::size_t i, std::uint64_t key) { return static_cast<float>((i * 7 + key + 3 * rank) % 64); }

// One operation with what comes out of it.
struct Case {
  std::vector<int> ranks;
  std::uint64_t key;
  int kind;
  std::size_t count;
  std::vector<float> in, out;
  std::vector<float> wanted;

  std::unique_ptr<Operation> far(Engine& engine);

  Case(std::vector<int> group, int rank, std::uint64_t key, int kind, std::size_t count)
      : ranks(std::move(group)), key(key), kind(kind), count(count) {
    const std::size_t n = ranks.size();
    const std::size_t me = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    const auto rows = [&](std::size_t member) { return kind == 2 ? count * (member + 1) / n : count; };
    for (std::size_t i = 0; i < rows(me); ++i) in.push_back(value(ranks[me], i, key));
    const auto sum = [&](std::size_t i) {
      float total = 0;
      for (const int other : ranks) total += value(other, i, key);
      return total;
    };
    const std::size_t begin = count * me / n, end = count * (me + 1) / n;
    if (kind == 0) {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(sum(i));
    } else if (kind == 1) {
      for (std::size_t i = begin; i < end; ++i) wanted.push_back(sum(i));
    } else if (kind == 2) {
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < rows(r); ++i) wanted.push_back(value(ranks[r], i, key));
      }
    } else if (kind == 3) {
      for (std::size_t i = 0; i < count; ++i) wanted.push_back(value(ranks[key % n], i, key));
    } else {
      for (const int other : ranks) {
        for (std::size_t i = begin; i < end; ++i) wanted.push_back(value(other, i, key));
      }
    }
    out.resize(wanted.size());
  }

  std::unique_ptr<Operation> operation(Engine& engine) {
    if (!engine.are_near(ranks)) return far(engine);
    Place place = engine.place(ranks);
    const std::uint64_t id = engine.next_id(key);
    char* from = reinterpret_cast<char*>(in.data());
    char* into = reinterpret_cast<char*>(out.data());
    std::vector<std::size_t> begins;
    for (std::size_t r = 0; r <= ranks.size(); ++r) begins.push_back(count * r / ranks.size() * 4);
    if (kind == 0) {
      const std::size_t half = count / 2 * 4;
      std::vector<Piece> pieces = {{from, into, half}, {from + half, into + half, count * 4 - half}};
      return shared_all_reduce(place, id, pieces, DType::kFloat32, Op::kSum);
    }
    if (kind == 1) return shared_reduce_scatter(place, id, from, into, begins, DType::kFloat32, Op::kSum);
    if (kind == 2) {
      return shared_all_gather(place, id, from, in.size(), 4, [this](std::uint64_t rows) {
        if (rows != out.size()) complain("the rows of an all_gather");
        return reinterpret_cast<char*>(out.data());
      });
    }
    if (kind == 3) return shared_broadcast(place, id, from, into, count * 4, key % ranks.size());
    return shared_all_to_all(place, id, from, into, begins);
  }
};

std::unique_ptr<Operation> Case::far(Engine& engine) {
  const Hosts hosts = engine.hosts(ranks);
  const std::uint64_t id = engine.next_id(key);
  char* from = reinterpret_cast<char*>(in.data());
  char* into = reinterpret_cast<char*>(out.data());
  std::vector<std::size_t> begins;
  for (std::size_t r = 0; r <= ranks.size(); ++r) begins.push_back(count * r / ranks.size() * 4);
  if (kind == 0) return far_all_reduce(hosts, id, {{from, into, count * 4}}, DType::kFloat32, Op::kSum);
  if (kind == 1) return far_reduce_scatter(hosts, id, from, into, begins, DType::kFloat32, Op::kSum);
  if (kind == 2) {
    return far_all_gather(hosts, id, from, in.size(), 4,
                          [this](std::uint64_t) { return reinterpret_cast<char*>(out.data()); });
  }
  if (kind == 3) return far_broadcast(hosts, id, from, into, count * 4, key % ranks.size());
  return far_all_to_all(hosts, id, from, into, begins);
}

std::vector<std::vector<int>> groups_of(int members) {
  std::vector<std::vector<int>> groups(1);
  for (int i = 0; i < members; ++i) groups[0].push_back(i);
  for (int i = 0; members > 2 && i < members; ++i) groups.push_back({std::min(i, (i + 1) % members), std::max(i, (i + 1) % members)});
  return groups;
}

// Runs rounds of operations, in each round all at once, in an order of this member's own.
void run_cases(Engine& engine, int members, int rounds, std::size_t largest) {
  std::mt19937 same(7), own(engine.rank() + 100);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Case>> cases;
    for (int i = 0; i < 24; ++i) {
      const auto groups = groups_of(members);
      const std::size_t chosen = same() % groups.size();
      const auto& group = groups[chosen];
      const std::size_t sizes[] = {0, 1, 13, 1021, 1024, 1025, 40013, same() % largest};
      const std::size_t count = sizes[same() % 8];
      const int kind = static_cast<int>(same() % 5);
      if (std::find(group.begin(), group.end(), engine.rank()) == group.end()) continue;
      cases.push_back(std::make_unique<Case>(group, engine.rank(), 100 * chosen + i + 1, kind, count));
    }
    std::shuffle(cases.begin(), cases.end(), own);
    Results results;
    for (auto& one : cases) engine.submit(one->operation(engine), one->ranks, results.next());
    const std::string error = results.wait();
    if (!error.empty()) return complain(error);
    for (const auto& one : cases) {
      if (one->out != one->wanted) {
        complain("member " + std::to_string(engine.rank()) + ", kind " + std::to_string(one->kind) + ", " +
                 std::to_string(one->count) + " numbers, " + std::to_string(one->ranks.size()) + " members");
      }
    }
  }
}

void check_dtypes() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const std::uint16_t half[] = {static_cast<std::uint16_t>(bits), 0};
      float wide;
      std::uint16_t back[2];
      convert(dtype, half, DType::kFloat32, &wide, 1);
      convert(DType::kFloat32, &wide, dtype, back, 1);
      if (wide == wide && back[0] != half[0]) complain("a 16-bit float does not come back");
    }
  }
  const std::int8_t a[] = {127, -5}, b[] = {1, 7};
  const void* parts[] = {a, b};
  std::int8_t total[2];
  reduce(DType::kInt8, Op::kSum, total, parts, 2, 2);
  if (total[0] != -128 || total[1] != 2) complain("int8 does not wrap");
  const std::uint16_t one = 0x3c00, quarter = 0x1000;  // in float16: 1, and a half of what 1 can be raised by
  const void* halves[] = {&one, &quarter, &quarter};
  std::uint16_t sum;
  reduce(DType::kFloat16, Op::kSum, &sum, halves, 3, 1);
  if (sum != 0x3c01) complain("16-bit floats are rounded more than once");
  const bool yes = true, no = false;
  const void* bools[] = {&yes, &no};
  bool any, all;
  reduce(DType::kBool, Op::kSum, &any, bools, 2, 1);
  reduce(DType::kBool, Op::kMin, &all, bools, 2, 1);
  if (!any || all) complain("bools");
}

void check_layout() {
  for (std::size_t members = 1; members <= 1000; ++members) {
    if (Layout(members).chunk < members * kLine) complain("the chunks of " + std::to_string(members) + " members are too small");
  }
}

void threads(int rounds) {
  check_dtypes();
  check_layout();
  for (const int members : {1, 2, 3, 5, 8}) {
    std::string error;
    const auto segment = Segment::anonymous(members, &error);
    if (segment == nullptr) return complain(error);
    std::vector<std::thread> all;
    for (int i = 0; i < members; ++i) segment->come(i);
    for (int rank = 0; rank < members; ++rank) {
      all.emplace_back([=] {
        Engine engine(here(rank, members), segment, nullptr, Engine::Options());
        run_cases(engine, members, rounds, 300000);
        Results last;  // an engine that goes while others still read would be a member that has ended
        Case barrier(groups_of(members)[0], rank, 999, 0, 1);
        engine.submit(barrier.operation(engine), barrier.ranks, last.next());
        last.wait();
      });
    }
    for (auto& one : all) one.join();
    if (segment->header().free_areas != (1u << kAreas) - 1) complain("an area is not given back");
  }
}

// Members are threads, in turns on two hosts that have memory of their own each, and TCP between them.
void hosts(int rounds) {
  for (const int members : {2, 3, 4}) {
    std::string error;
    Membership membership;
    membership.key = "0123456789abcdef";
    std::vector<Descriptor> listeners;
    std::vector<std::shared_ptr<Segment>> memory;
    Engine::Members who;
    for (int rank = 0; rank < members; ++rank) {
      listeners.push_back(listen_on({"127.0.0.1", 0}, &error));
      membership.members.push_back({"127.0.0.1", port_of(listeners.back())});
      who.hosts.push_back(rank % 2);
      who.index_of_rank.push_back(rank / 2);
    }
    for (int host = 0; host < 2; ++host) {
      const int here = (members + 1 - host) / 2;
      memory.push_back(Segment::anonymous(here, &error));
      for (int i = 0; i < here; ++i) memory.back()->come(i);
    }
    std::vector<std::thread> all;
    for (int rank = 0; rank < members; ++rank) {
      membership.rank = who.rank = rank;
      auto transport = std::make_unique<Transport>(membership, std::move(listeners[rank]));
      all.emplace_back([=, transport = std::move(transport)]() mutable {
        Engine engine(who, memory[rank % 2], std::move(transport), Engine::Options());
        run_cases(engine, members, rounds, 300000);
        const std::vector<int> ranks = groups_of(members)[0];
        std::vector<char> rows(members);
        Results results;
        engine.submit(far_all_gather(engine.hosts(ranks), engine.next_id(999), "r", 1, 1,
                                     [&](std::uint64_t) { return rank == 0 ? nullptr : rows.data(); }),
                      ranks, results.next());
        const std::string said = results.wait();
        if (said.find("no memory for " + std::to_string(members) + " bytes") == std::string::npos) complain("no memory: " + said);
      });
    }
    for (auto& one : all) one.join();
  }
}

std::string path_of(const char* what) {
  return "/dev/shm/tfdist-check-" + std::to_string(getpid()) + "-" + what;
}

// Runs a function in processes that are members, and returns what they exited with; a negative signal if by one.
template <typename Function, typename Meanwhile>
std::vector<int> in_processes(int members, const std::string& path, Function function, Meanwhile meanwhile) {
  const std::uint64_t nonce[2] = {0x1234, static_cast<std::uint64_t>(getpid())};
  std::string error;
  const auto made = Segment::create(path, nonce, members, &error);
  if (made == nullptr) {
    complain(error);
    return {};
  }
  std::vector<pid_t> processes;
  for (int rank = 0; rank < members; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      wrong = 0;
      const auto segment = Segment::open(path, nonce, members, &error);
      if (segment == nullptr) {
        complain(error);
        std::_Exit(1);
      }
      segment->come(rank);
      for (int i = 0; i < members; ++i) {
        while (!segment->has_come(i)) usleep(100);
      }
      function(rank, segment);
      std::_Exit(wrong == 0 ? 0 : 1);
    }
    processes.push_back(child);
  }
  for (int i = 0; i < members; ++i) {
    while (!made->has_come(i)) usleep(100);
  }
  unlink(path.c_str());
  meanwhile(processes);
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

void processes(int rounds) {
  for (const int members : {2, 3, 8}) {
    const auto codes = in_processes(
        members, path_of("processes"),
        [&](int rank, const std::shared_ptr<Segment>& segment) {
          Engine engine(here(rank, members), segment, nullptr, Engine::Options());
          const pid_t child = fork();
          if (child == 0) {  // what it ends is none of its parent's
            engine.abort("in a fork");
            engine.stop();
            std::_Exit(0);
          }
          int status = -1;
          if (waitpid(child, &status, 0) != child || status != 0) complain("a fork ended with " + std::to_string(status));
          run_cases(engine, members, rounds, 1000000);
        },
        [](const std::vector<pid_t>&) {});
    for (const int code : codes) {
      if (code != 0) complain("a process of " + std::to_string(members) + " ended with " + std::to_string(code));
    }
  }
  const std::uint64_t nonce[2] = {1, 2}, other[2] = {1, 3};
  std::string error;
  const auto segment = Segment::create(path_of("nonce"), nonce, 2, &error);
  if (Segment::open(path_of("nonce"), other, 2, &error) != nullptr) complain("another job's memory is opened");
  if (Segment::create(path_of("nonce"), nonce, 2, &error) != nullptr) complain("a file that is there is taken");
  struct stat found;
  if (stat(path_of("nonce").c_str(), &found) != 0 || (found.st_mode & 0777) != 0600) complain("the file's mode");
  unlink(path_of("nonce").c_str());
  if (Segment::create("/proc/no/such", nonce, 2, &error) != nullptr || error.empty()) complain("no folder");
}

void kill_one(int times) {
  std::mt19937 draw(static_cast<unsigned>(getpid()));
  for (int i = 0; i < times; ++i) {
    const int members = 2 + static_cast<int>(draw() % 3), victim = static_cast<int>(draw() % members);
    const int signal = i % 4 == 3 ? SIGSTOP : SIGKILL;
    const auto delay = draw() % 20000;
    const std::string name = "member " + std::to_string(victim) + " has ";
    const auto codes = in_processes(
        members, path_of("kill"),
        [&](int rank, const std::shared_ptr<Segment>& segment) {
          Engine engine(here(rank, members), segment, nullptr, Engine::Options{1.5, 0});
          const Clock::time_point begin = Clock::now();
          for (std::uint64_t step = 0;; ++step) {
            Case large(groups_of(members)[0], rank, 1, 0, 200000), small(groups_of(members)[0], rank, 2, 2, 50);
            Results results;
            engine.submit(large.operation(engine), large.ranks, results.next());
            engine.submit(small.operation(engine), small.ranks, results.next());
            const std::string error = results.wait();
            if (error.empty()) continue;
            if (error.find(kBroken) != 0 || error.find(name) == std::string::npos) complain(error);
            if (seconds_since(begin) > 20) complain("it took longer than 20 s");
            return;
          }
        },
        [&](const std::vector<pid_t>& all) {
          usleep(static_cast<useconds_t>(delay));
          kill(all[victim], signal);
          for (int other = 0; signal == SIGSTOP && other < members; ++other) {
            siginfo_t ended;
            if (other != victim && waitid(P_PID, all[other], &ended, WEXITED | WNOWAIT) != 0) complain("waitid");
          }
          kill(all[victim], SIGKILL);
        });
    for (int rank = 0; rank < static_cast<int>(codes.size()); ++rank) {
      const int wanted = rank == victim ? -SIGKILL : 0;
      if (codes[rank] != wanted) complain("after a kill, member " + std::to_string(rank) + " ended with " + std::to_string(codes[rank]));
    }
  }
}

// One that takes no part in the others' operations is killed while it has the directory's lock.
void kill_with_the_lock() {
  constexpr int members = 3, victim = 2;
  const auto codes = in_processes(
      members, path_of("lock"),
      [&](int rank, const std::shared_ptr<Segment>& segment) {
        if (rank == victim) {
          std::uint64_t open = 0;
          while (!segment->header().lock.compare_exchange_weak(open, victim + 1)) open = 0;
          kill(getpid(), SIGKILL);
        }
        while (segment->header().lock.load() != victim + 1) usleep(100);
        Engine engine(here(rank, members), segment, nullptr, Engine::Options());
        Case sum({0, 1}, rank, 1, 0, 1000);
        Results results;
        engine.submit(sum.operation(engine), sum.ranks, results.next());
        const std::string error = results.wait();
        if (error.find("member 2 has ended") == std::string::npos) complain("a lock that is kept: " + error);
      },
      [](const std::vector<pid_t>&) {});
  if (codes != std::vector<int>{0, 0, -SIGKILL}) complain("a process whose lock is kept");
}

void restart(int times) {
  constexpr int members = 3;
  for (int i = 0; i < times; ++i) {
    std::string error;
    double longest = 0;
    std::mutex mutex;
    for (int generation = 0; generation < 2; ++generation) {
      const auto segment = Segment::anonymous(members, &error);
      std::vector<std::thread> all;
      for (int rank = 0; rank < members; ++rank) segment->come(rank);
      for (int rank = 0; rank < members; ++rank) {
        all.emplace_back([&, rank] {
          Engine engine(here(rank, members), segment, nullptr, Engine::Options());
          run_cases(engine, members, 1, 5000);
          Case waits({0, 1, 2}, rank, 77, 0, 100000);
          Results results;
          if (rank != 1) engine.submit(waits.operation(engine), waits.ranks, results.next());
          const Clock::time_point begin = Clock::now();
          if (rank == 1) engine.abort("on purpose");
          const std::string said = results.wait();
          if (rank != 1 && said.find("member 1 gave up: on purpose") == std::string::npos) complain(said);
          engine.stop();
          const std::lock_guard<std::mutex> guard(mutex);
          longest = std::max(longest, seconds_since(begin));
        });
      }
      for (auto& one : all) one.join();
    }
    std::printf("after an abort the engine can be started again within %.3f s\n", longest);
  }
}

void speed(int members) {
  in_processes(
      members, path_of("speed"),
      [&](int rank, const std::shared_ptr<Segment>& segment) {
        Engine engine(here(rank, members), segment, nullptr, Engine::Options());
        std::vector<int> ranks = groups_of(members)[0];
        for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{4} << 20, std::size_t{64} << 20}) {
          std::vector<float> in(bytes / 4), out(bytes / 4);
          const int rounds = bytes > (1 << 20) ? 30 : 300;
          std::vector<double> reduce, copy;
          for (int i = 0; i < rounds; ++i) {
            for (std::size_t j = 0; j < in.size(); j += 16) in[j] = static_cast<float>(i);  // not the same bytes again
            Clock::time_point begin = Clock::now();
            Results results;
            engine.submit(shared_all_reduce(engine.place(ranks), engine.next_id(bytes),
                                            {{reinterpret_cast<char*>(in.data()), reinterpret_cast<char*>(out.data()), bytes}},
                                            DType::kFloat32, Op::kSum),
                          ranks, results.next());
            results.wait();
            reduce.push_back(seconds_since(begin));
            begin = Clock::now();
            std::memcpy(out.data(), in.data(), bytes);
            copy.push_back(seconds_since(begin));
          }
          std::sort(reduce.begin(), reduce.end());
          std::sort(copy.begin(), copy.end());
          if (rank == 0) {
            std::printf("%9zu bytes: %9.1f us (best %.1f), memcpy %.1f us\n", bytes, 1e6 * reduce[rounds / 2], 1e6 * reduce[0],
                        1e6 * copy[rounds / 2]);
            std::fflush(stdout);
          }
        }
      },
      [](const std::vector<pid_t>&) {});
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  const int times = count > 2 ? std::atoi(words[2]) : 0;
  if (what == "threads") {
    threads(times > 0 ? times : 4);
  } else if (what == "hosts") {
    hosts(times > 0 ? times : 2);
  } else if (what == "processes") {
    processes(times > 0 ? times : 4);
  } else if (what == "kill") {
    kill_with_the_lock();
    kill_one(times > 0 ? times : 8);
  } else if (what == "restart") {
    restart(times > 0 ? times : 3);
  } else if (what == "speed") {
    speed(times > 0 ? times : 2);
  } else {
    std::fprintf(stderr, "usage: %s threads|hosts|processes|kill|restart|speed [TIMES]\n", words[0]);
    return 2;
  }
  return wrong == 0 ? 0 : 1;
}
