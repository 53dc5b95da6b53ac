// Tagged messages between the members of a job over TCP. It has no thread: whoever has time calls `progress`.

#ifndef TFDIST_NATIVE_COLLECTIVES_TRANSPORT_H_
#define TFDIST_NATIVE_COLLECTIVES_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "agreement.h"
#include "buffers.h"
#include "channel.h"
#include "joining.h"
#include "message.h"
#include "socket.h"

namespace tfdist::collectives {

// Not safe for threads: one at a time uses it. Members join while it is used already; messages for one that is not there
// yet wait. A member that dies, closes, or does not join in time fails every message with it, and the error names it. Of
// one that is stopped nothing comes: who waits has a deadline, and `silent_seconds` tells whom to name.
//
//   std::string error;
//   Descriptor listener = listen_on({"127.0.0.1", 0}, &error);    // its port goes to the others
//   Transport transport({0, addresses, {}, key, generation}, std::move(listener));
//   Request request;
//   transport.send(1, {operation, 0}, data, bytes, &request);
//   while (!request.done() && !request.failed()) transport.progress();
class Transport {
 public:
  Transport(const Membership& membership, Descriptor listener);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  // The bytes are the caller's, and stay as they are, until the request is done. A message of several parts is sent by
  // several calls with one tag, the whole size as `total` and one request, in order.
  void send(int to, Tag tag, const void* data, std::size_t bytes, Request* request) {
    send_part(to, tag, data, bytes, bytes, request);
  }
  void send_part(int to, Tag tag, const void* data, std::size_t bytes, std::size_t total, Request* request);

  // May be called before or after the bytes arrive; the earlier, the less is waited for.
  void receive(int from, Tag tag, void* data, std::size_t bytes, Request* request);
  // The consumer is called by `progress`, piece by piece, with whole numbers of `grain` bytes; it must not use the
  // transport.
  void receive_pieces(int from, Tag tag, std::size_t bytes, std::size_t grain, Consumer consumer, Request* request);

  // Lets go of a message: neither its request nor its bytes are used afterwards. The other member is not told.
  void cancel(int member, const Request* request);

  // Moves what can be moved without waiting; whether anything moved.
  bool progress();

  // Becomes readable when `progress` has something to do.
  int wait_descriptor() const { return events_.get(); }

  // Ends all connections and fails all messages, now and later. The others are told why, if they read within 0.1 s. No
  // reason: this member ends as it should.
  void abort(const std::string& reason);

  // Ends as it should: waits until the others end too, so that nothing which is on its way to them is lost.
  void finish(double seconds);

  int rank() const { return membership_.rank; }
  int size() const { return static_cast<int>(membership_.members.size()); }
  // For messages: "member 2 (10.0.0.3:4000)".
  const std::string& name(int member) const { return channels_[member]->member(); }
  // For how long a member has not answered; 0 for one that is not connected, or answers.
  double silent_seconds(int member) const { return channels_[member]->silent_seconds(); }
  Buffers& buffers() { return buffers_; }
  Agreement& agreement() { return agreement_; }

 private:
  void flush(int member);
  void watch(int member, bool is_new);
  void join();
  void ask();
  void tell();
  void hear(int member);
  void say_why(const std::string& reason);

  const Membership membership_;
  Buffers buffers_;
  Agreement agreement_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by rank
  std::vector<bool> watched_for_writing_;
  std::unique_ptr<Joining> joining_;  // until everybody is there
  std::unique_ptr<PassingMemory> memory_;
  Descriptor events_;
  Descriptor timer_;
  bool aborted_ = false;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_TRANSPORT_H_
