// A process of another user on a host of a job: it can neither have the members' memory nor be one of them, whatever it
// knows but the key; and the job comes together beside it and goes on.

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>

#include "parts.h"
#include "processes.h"

namespace tfdist::collectives::checks {
namespace {

constexpr int kMembers = 4, kHosts = 2;
constexpr int kPidfdGet = 438;  // its number on every architecture
constexpr uid_t kNobody = 65534;
constexpr double kJoinSeconds = 120;  // more than the other user's attempts take on a busy machine

void give_up_root() {
  const bool given_up = setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
                        setresuid(kNobody, kNobody, kNobody) == 0;
  if (!given_up) complain("this part needs root, to become another user");
  prctl(PR_SET_DUMPABLE, 1);  // or it could not look at itself in /proc, and would be refused there for that reason
}

void require_denied(bool denied, const std::string& what) {
  if (!denied) complain("another user can " + what);
}

void require_closed(const std::string& path, const std::vector<int>& modes = {O_RDONLY, O_WRONLY, O_RDWR}) {
  for (const int mode : modes) {
    errno = 0;
    const Descriptor file(open(path.c_str(), mode | O_CLOEXEC));
    require_denied(!file && errno == EACCES, "open " + path + " (" + std::strerror(errno) + ")");
  }
}

// Opens what the process that has made the memory has open, with the right number; then its own copy of that, which it
// would not have but for being a child of that process: so that it is refused by the memory's mode alone.
void try_memory(const Job& job) {
  for (const auto& memory : job.memory) {
    const std::string path = memory->path(), number = path.substr(path.rfind('/') + 1);
    std::string error;
    const auto opened = Segment::open(path, memory->header().nonce, memory->layout().members, &error);
    require_denied(opened == nullptr && has(error, "Permission denied"), "take part in the memory: " + error);
    require_closed(path);
    require_closed("/proc/self/fd/" + number);
  }
  for (const pid_t process : job.processes) {
    const std::string folder = "/proc/" + std::to_string(process);
    require_closed(folder + "/mem");
    for (const char* list : {"/fd", "/map_files", "/maps"}) require_closed(folder + list, {O_RDONLY});
    const Descriptor other(static_cast<int>(syscall(kPidfdOpen, process, 0)));
    for (int number = 0; other && number < 64; ++number) {
      require_denied(!Descriptor(static_cast<int>(syscall(kPidfdGet, other.get(), number, 0))), "take a descriptor");
    }
    char byte = 0;
    iovec here{&byte, 1}, there{&job.memory[0]->header(), 1};  // where a child of its parent has mapped it too
    require_denied(process_vm_readv(process, &here, 1, &there, 1, 0) < 0, "read the memory");
    require_denied(process_vm_writev(process, &here, 1, &there, 1, 0) < 0, "write to the memory");
  }
}

Descriptor connected(const Address& address) {
  std::string error;
  Descriptor connection = begin_connect(resolve(address, &error).at(0), &error);
  pollfd event{connection.get(), POLLOUT, 0};
  poll(&event, 1, 5000);
  return connection;
}

// Whether the other side closes a connection after having said no more than what it says to everybody.
bool is_dropped(const Descriptor& connection) {
  std::size_t heard = 0;
  for (;;) {
    std::array<char, 256> bytes;
    pollfd event{connection.get(), POLLIN, 0};
    if (poll(&event, 1, 20000) <= 0) return false;
    const ssize_t count = recv(connection.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) return heard <= sizeof(Challenge);
    heard += static_cast<std::size_t>(count);
  }
}

// Comes as the member that is missing, with another key. Returns why it is refused.
std::string refused(Membership membership, int listens, const std::string& key) {
  membership.rank = kMembers - 1;
  membership.peers = {listens};
  membership.key = key;
  membership.join_seconds = 0.3;
  Transport transport(membership, Descriptor());
  Request request;
  char byte = 0;
  transport.receive(listens, {9, 9}, &byte, 1, &request);
  const Clock::time_point begin = Clock::now();
  while (!request.failed() && !request.done() && seconds_since(begin) < 20) {
    transport.progress();
    usleep(1000);
  }
  return request.error();
}

// Returns connections that have begun to answer and never go on, or say nothing at all.
std::vector<Descriptor> try_to_join(const Membership& membership) {
  std::vector<Descriptor> slow;
  for (int listens = 0; listens < kMembers - 1; ++listens) {
    const Address& address = membership.members[listens];
    for (int i = 0; i < 20; ++i) slow.push_back(connected(address));
    send(slow.back().get(), &kMagic, sizeof kMagic, MSG_NOSIGNAL);
    const Descriptor garbage = connected(address);
    const std::string noise(100000, 'G');
    send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    require_denied(is_dropped(garbage), "send garbage and stay");
    for (const char* key : {"", "0123456789abcdeF"}) {
      const std::string why = refused(membership, listens, key);
      require_denied(has(why, "it refuses this member"), "join with the key '" + std::string(key) + "': " + why);
    }
  }
  return slow;
}

// A member's memory is no file of a folder, whose name somebody could find.
void require_nameless(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/maps";
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen(path.c_str(), "r"), &std::fclose);
  bool found = false;
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    if (has(line, "/dev/shm/")) complain(std::string("memory with a name: ") + line);
    found |= has(line, "rw-s") && has(line, "/memfd:tfdist-collectives (deleted)");
  }
  if (!found) complain("process " + std::to_string(process) + " does not have the memory");
}

}  // namespace

void another_user(int rounds) {
  int tried[2], ended[2];  // tell the last member that it may come, and the other user that the job has ended
  if (pipe(tried) != 0 || pipe(ended) != 0) return complain("a pipe");
  pid_t other = -1;
  const auto codes = in_processes(
      kMembers, kHosts,
      [&](Start start) {
        char byte;
        close(ended[1]);
        if (start.members.rank == kMembers - 1 && read(tried[0], &byte, 1) != 1) complain("the other user has not tried");
        Engine engine(start.members, start.memory, std::move(start.transport), Engine::Options{20, 0});
        run_cases(engine, kMembers, rounds, 100000);
      },
      [&](const Job& job) {
        for (const pid_t process : job.processes) require_nameless(process);
        other = fork();
        if (other != 0) return;
        close(ended[1]);
        give_up_root();
        try_memory(job);
        const std::vector<Descriptor> slow = try_to_join(job.membership);
        char byte = 1;
        if (write(tried[1], &byte, 1) != 1 || read(ended[0], &byte, 1) != 0) complain("a pipe");
        std::_Exit(wrong == 0 ? 0 : 1);
      },
      kJoinSeconds);
  close(ended[1]);
  int status = -1;
  if (waitpid(other, &status, 0) != other || status != 0) complain("the other user ended with " + std::to_string(status));
  if (codes != std::vector<int>(kMembers, 0)) complain("a job beside another user");
  for (const int descriptor : {tried[0], tried[1], ended[0]}) close(descriptor);
}

}  // namespace tfdist::collectives::checks
