// What travels on a connection between two members, and what whoever sends or receives is told.

#ifndef TFDIST_NATIVE_COLLECTIVES_MESSAGE_H_
#define TFDIST_NATIVE_COLLECTIVES_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tfdist::collectives {

// Names a message between a pair of members, in one direction, for as long as it is under way.
struct Tag {
  std::uint64_t operation = 0;
  std::uint32_t step = 0;

  bool operator==(const Tag& other) const { return operation == other.operation && step == other.step; }
};

struct TagHash {
  std::size_t operator()(const Tag& tag) const {
    return std::hash<std::uint64_t>()(tag.operation ^ (tag.step + 1) * 0x9e3779b97f4a7c15u);
  }
};

// Where a message stands. It belongs to the caller, who keeps it until it is done or has failed, or cancels it.
class Request {
 public:
  bool done() const { return done_; }
  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }  // names the member
  std::size_t moved() const { return moved_; }  // bytes from the start that were handed to the kernel, or have arrived

  void move(std::size_t bytes, std::size_t total) {
    moved_ += bytes;
    done_ = moved_ >= total;
  }
  void fail(std::string error) {
    if (!done_ && error_.empty()) error_ = std::move(error);
  }

 private:
  std::size_t moved_ = 0;
  bool done_ = false;
  std::string error_;
};

// Is given the next bytes of a message, in order; the memory is the transport's, and aligned for any number.
using Consumer = std::function<void(const char* data, std::size_t bytes)>;

// The members never keep more than `kEagerCredit` bytes of each other that nobody has asked for yet, and always read
// whatever comes, so no order in which members come to their operations can block a connection. A message of
// `kEagerBytes` or less is sent at once as long as that credit lasts. Any other waits until the receiver, who has a
// place for it, has granted it; a receiver that is asked early grants early, so the grant is there when it is needed.
constexpr std::size_t kEagerBytes = 64 << 10;
constexpr std::size_t kEagerCredit = 1 << 20;

enum class Kind : std::uint32_t {
  kEager = 1,  // bytes of a message that was not granted
  kGranted,    // bytes of a message that was
  kAnnounce,   // there is a message that waits to be granted
  kGrant,      // it may be sent
  kCredit,     // `bytes` of eager messages were taken
  kPing,       // are you there?
  kPong,       // yes
  kLeave,      // the member ends; what follows says why, if it is not the usual end
  kDoing,      // the member waits in an operation (step 1), or has done it (0): `total` and `bytes` are its signature and size
};

// A message may come in several frames, in order, between which there may be frames of others.
struct Frame {
  Kind kind{};
  std::uint32_t step = 0;
  std::uint64_t operation = 0;
  std::uint64_t total = 0;  // bytes of the whole message
  std::uint64_t bytes = 0;  // that follow this frame

  Tag tag() const { return {operation, step}; }
};

static_assert(sizeof(Frame) == 32);

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_MESSAGE_H_
