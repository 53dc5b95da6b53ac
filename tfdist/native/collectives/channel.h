// The messages between this member and one other, over one connection.

#ifndef TFDIST_NATIVE_COLLECTIVES_CHANNEL_H_
#define TFDIST_NATIVE_COLLECTIVES_CHANNEL_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "message.h"
#include "signature.h"
#include "socket.h"

namespace tfdist::collectives {

// Where the bytes of a message go: to `data`, or through `consumer`, in pieces of whole numbers of `grain` bytes.
struct Sink {
  char* data = nullptr;
  std::size_t grain = 1;
  Consumer consumer = nullptr;
};

// Memory for what passes through: parts for consumers, and what is thrown away.
class PassingMemory {
 public:
  static constexpr std::size_t kBytes = 256 << 10;
  static constexpr std::size_t kLargestGrain = 64;

  char* data() { return bytes_.data(); }

 private:
  alignas(64) std::array<char, kBytes + kLargestGrain> bytes_;
};

class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Channel(std::string member) : member_(std::move(member)) {}

  // Until it is opened, messages wait.
  void open(Descriptor connection);
  void close(const std::string& reason);  // fails what is under way, and what comes, with "MEMBER REASON"
  void leave(const std::string& reason);  // tells the other that this member ends; as it should, if there is no reason
  void drop_waiting();                    // what has not begun to be sent

  // See Transport.
  void send(Tag tag, const void* data, std::size_t bytes, std::size_t total, Request* request);
  void receive(Tag tag, Sink sink, std::size_t total, Request* request);
  void cancel(const Request* request);

  bool read(PassingMemory& memory);  // whether anything came
  bool write();                      // whether anything went

  int descriptor() const { return connection_.get(); }
  bool is_open() const { return static_cast<bool>(connection_); }
  bool wants_to_write() const { return is_open() && (!queue_.empty() || !control_.empty()); }
  const std::string& member() const { return member_; }
  bool is_waited_for() const { return !outgoing_.empty() || !queue_.empty() || waiting_ > 0; }

  // Tells the other what this member does under an operation's number; `said` is what the other has told, once.
  struct Said {
    std::uint64_t operation;
    Doing doing;
    bool waits;  // and so wants an answer; an answer wants none
  };
  void say(const Said& one) {
    control(Kind::kDoing, {one.operation, one.waits ? 1u : 0u}, one.doing.signature, one.doing.size);
  }
  std::vector<Said> said() { return std::exchange(said_, {}); }

  // Asks whether the other is there, unless an answer is outstanding.
  void ping();
  // Seconds since it was asked; 0 if anything has come since.
  double silent_seconds() const;

 private:
  struct Piece {
    const char* data;
    std::size_t bytes;
  };

  struct Outgoing {
    std::size_t total = 0;
    std::size_t queued = 0;
    Kind kind = Kind::kAnnounce;  // until it is granted
    Request* request = nullptr;
    std::vector<Piece> waiting;
  };

  struct Writing {
    Frame frame;
    const char* data = nullptr;
    Request* request = nullptr;

    std::size_t size() const { return sizeof frame + (data == nullptr ? 0 : frame.bytes); }
  };

  struct Incoming {
    std::size_t total = 0;
    std::size_t filled = 0;
    Request* request = nullptr;
    Sink sink;
    bool is_kept = false;       // the bytes go to `kept`, for one who will ask
    bool is_thrown = false;     // nobody will ask any more
    bool is_eager = false;
    std::vector<char> kept;
    std::array<char, PassingMemory::kLargestGrain> part{};  // of a number of which the rest is to come
    std::size_t part_bytes = 0;
  };

  void control(Kind kind, Tag tag = {}, std::uint64_t total = 0, std::uint64_t bytes = 0);
  void queue(const Outgoing& message, Tag tag, Piece piece);
  void granted(Tag tag);
  void sent(std::size_t bytes);
  bool received(std::size_t direct, std::size_t ahead, PassingMemory& memory);
  bool start(const Frame& frame);
  Piece place(PassingMemory& memory, Incoming& message);
  void arrived(PassingMemory& memory, Incoming& message, std::size_t bytes);
  void deliver(Incoming& message, const char* data, std::size_t bytes);
  void finish(Tag tag);
  void return_credit(std::size_t bytes);
  Incoming* body();
  std::string mismatch(std::size_t sent, std::size_t expected) const;
  bool broken();

  const std::string member_;
  std::string error_;  // empty unless it is closed
  std::vector<char> remains_;  // of a frame whose message was given up
  std::string farewell_;        // of this member
  std::string other_farewell_;  // of the other
  bool other_leaves_ = false;
  Descriptor connection_;

  std::unordered_map<Tag, Outgoing, TagHash> outgoing_;
  std::unordered_set<Tag, TagHash> grants_;  // that came before their messages
  std::deque<Writing> queue_;
  std::deque<Writing> control_;  // goes first
  std::size_t written_ = 0;      // of the first in `queue_`
  std::size_t credit_ = kEagerCredit;

  std::unordered_map<Tag, Incoming, TagHash> incoming_;
  Incoming leaving_;
  Frame frame_;                 // whose body is being read
  std::size_t body_left_ = 0;
  std::array<char, 16 << 10> ahead_;  // read, and not yet looked at
  std::size_t ahead_begin_ = 0, ahead_end_ = 0;
  std::vector<Said> said_;
  std::size_t owed_credit_ = 0;
  std::size_t kept_bytes_ = 0;
  int waiting_ = 0;  // requests to receive

  Clock::time_point asked_{};  // when a ping was sent that nothing has followed
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_CHANNEL_H_
