#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "socket.h"

namespace tfdist::collectives {
namespace {

std::string failure(const std::string& what, int error) { return what + " (" + std::strerror(error) + ")"; }

// Of what the process's number is one; another container may have another.
std::uint64_t pid_namespace() {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? static_cast<std::uint64_t>(found.st_ino) : 0;
}

}  // namespace

std::shared_ptr<Segment> Segment::map(int descriptor, const Layout& layout, std::string* error) {
  const int flags = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(nullptr, layout.bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (base == MAP_FAILED) {
    *error = failure("shared memory of " + std::to_string(layout.bytes) + " bytes cannot be mapped", errno);
    return nullptr;
  }
  return std::shared_ptr<Segment>(new Segment(static_cast<char*>(base), layout));
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

std::shared_ptr<Segment> Segment::create(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                         std::string* error) {
  const Layout layout(members);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) {
    *error = failure(path + " cannot be made", errno);
    return nullptr;
  }
  int full;
  do {
    full = posix_fallocate(file.get(), 0, static_cast<off_t>(layout.bytes));
  } while (full == EINTR);
  std::shared_ptr<Segment> segment;
  if (full != 0) {
    *error = failure(path + " cannot have " + std::to_string(layout.bytes >> 20) + " MiB", full);
  } else {
    segment = map(file.get(), layout, error);
  }
  if (segment == nullptr) {
    unlink(path.c_str());
    return nullptr;
  }
  segment->initialise(nonce);
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                       std::string* error) {
  const Layout layout(members);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat found;
  if (file.get() < 0 || fstat(file.get(), &found) != 0) {
    *error = failure(path + " cannot be opened", errno);
    return nullptr;
  }
  if (found.st_uid != geteuid() || static_cast<std::uint64_t>(found.st_size) != layout.bytes) {
    *error = path + " is another user's, or of another size";
    return nullptr;
  }
  std::shared_ptr<Segment> segment = map(file.get(), layout, error);
  if (segment == nullptr) return nullptr;
  const Header& head = segment->header();
  if (head.magic.load(std::memory_order_acquire) != kSegmentMagic || head.nonce[0] != nonce[0] || head.nonce[1] != nonce[1]) {
    *error = path + " is another job's";
    return nullptr;
  }
  return segment;
}

std::shared_ptr<Segment> Segment::anonymous(std::size_t members, std::string* error) {
  const std::uint64_t nonce[2] = {1, 2};
  std::shared_ptr<Segment> segment = map(-1, Layout(members), error);
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
