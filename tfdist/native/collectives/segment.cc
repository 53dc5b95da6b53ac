#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tfdist::collectives {
namespace {

constexpr char kName[] = "tfdist-collectives";
constexpr char kTarget[] = "/memfd:tfdist-collectives";  // what the link of a descriptor says
constexpr unsigned kNoExecution = 8;                     // MFD_NOEXEC_SEAL, which older headers do not have

std::string failure(const std::string& what, int error) {
  return error == 0 ? what : what + " (" + std::strerror(error) + ")";
}

std::string in_words(const Layout& layout) { return "shared memory of " + std::to_string(layout.bytes >> 10) + " KiB"; }

// Of what the process's number is one; another container may have another.
std::uint64_t pid_namespace() {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? static_cast<std::uint64_t>(found.st_ino) : 0;
}

}  // namespace

std::shared_ptr<Segment> Segment::map(Descriptor file, const Layout& layout, std::string* error) {
  const int flags = file ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
  void* base = mmap(nullptr, layout.bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (base == MAP_FAILED) {
    *error = failure(in_words(layout) + " cannot be mapped", errno);
    return nullptr;
  }
  return std::shared_ptr<Segment>(new Segment(static_cast<char*>(base), layout, std::move(file)));
}

Segment::~Segment() { munmap(base_, layout_.bytes); }

void Segment::initialise(const std::uint64_t nonce[2]) {
  Header& head = header();
  head.bytes = layout_.bytes;
  head.members = layout_.members;
  head.nonce[0] = nonce[0];
  head.nonce[1] = nonce[1];
  for (std::size_t i = 0; i < kTickets; ++i) ticket(i).next = i + 1 < kTickets ? static_cast<std::uint32_t>(i + 2) : 0;
  for (std::size_t i = 0; i < layout_.smalls; ++i) {
    small_link(i) = i + 1 < layout_.smalls ? static_cast<std::uint32_t>(i + 2) : 0;
  }
  head.free_ticket = head.free_small = 1;
  head.free_areas = (1u << kAreas) - 1;
  head.magic.store(kSegmentMagic, std::memory_order_release);
}

std::shared_ptr<Segment> Segment::create(const std::uint64_t nonce[2], std::size_t members, std::string* error) {
  const Layout layout(members);
  // The kernel's answer to a file beyond the limit is a signal that ends a process.
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < layout.bytes) {
    *error = in_words(layout) + " is more than the " + std::to_string(limit.rlim_cur >> 10) +
             " KiB that a file of this process may have. Raise that limit (ulimit -f)";
    return nullptr;
  }
  Descriptor file(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution));
  if (!file && errno == EINVAL) file = Descriptor(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));  // before Linux 6.3
  if (!file || fchmod(file.get(), 0600) != 0) {
    *error = failure("shared memory cannot be made", errno);
    return nullptr;
  }
  int full;
  do {
    full = posix_fallocate(file.get(), 0, static_cast<off_t>(layout.bytes));
  } while (full == EINTR);
  if (full != 0) {
    *error = failure(in_words(layout) + " is not to be had", full) + ". Give the host or the container more memory";
    return nullptr;
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    *error = failure("shared memory cannot be sealed", errno);
    return nullptr;
  }
  std::shared_ptr<Segment> segment = map(std::move(file), layout, error);
  if (segment != nullptr) segment->initialise(nonce);
  return segment;
}

std::string Segment::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_.get());
}

std::shared_ptr<Segment> Segment::open(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                       std::string* error) {
  const Layout layout(members);
  // The number may be another process's here. What that one has there must not be opened unseen: it may be a device.
  char target[256] = {};
  errno = 0;
  const bool is_memory = readlink(path.c_str(), target, sizeof target - 1) > 0 &&
                         std::strncmp(target, kTarget, sizeof kTarget - 1) == 0;
  Descriptor file(is_memory ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
  struct stat found;
  if (!file || fstat(file.get(), &found) != 0) {
    *error = failure(path + " is not the shared memory, or cannot be opened", errno) +
             ". Only processes of one user and one PID namespace share memory: start them in one container, or containers "
             "with --pid=host";
    return nullptr;
  }
  const int seals = fcntl(file.get(), F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW;
  if (found.st_uid != geteuid() || (found.st_mode & 0077) != 0 || seals < 0 || (seals & wanted) != wanted ||
      static_cast<std::uint64_t>(found.st_size) != layout.bytes) {
    *error = path + " is another user's, or of another size; do all members run the same version of tfdist?";
    return nullptr;
  }
  std::shared_ptr<Segment> segment = map(std::move(file), layout, error);
  if (segment == nullptr) return nullptr;
  segment->close_file();
  const Header& head = segment->header();
  if (head.magic.load(std::memory_order_acquire) != kSegmentMagic || head.nonce[0] != nonce[0] || head.nonce[1] != nonce[1]) {
    *error = path + " is another job's";
    return nullptr;
  }
  return segment;
}

std::shared_ptr<Segment> Segment::anonymous(std::size_t members, std::string* error) {
  const std::uint64_t nonce[2] = {1, 2};
  std::shared_ptr<Segment> segment = map({}, Layout(members), error);
  if (segment != nullptr) segment->initialise(nonce);
  return segment;
}

void Segment::come(std::size_t index) {
  Member& me = member(index);
  me.namespace_.store(pid_namespace());
  me.pid.store(static_cast<std::uint64_t>(getpid()));
  me.answer.store(header().nonce[0] ^ header().nonce[1], std::memory_order_release);
}

bool Segment::has_come(std::size_t index) {
  return member(index).answer.load(std::memory_order_acquire) == (header().nonce[0] ^ header().nonce[1]);
}

}  // namespace tfdist::collectives
