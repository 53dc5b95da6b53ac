// Memory that processes of one host share: made by one of them, opened by the others, who prove that it is the same.

#ifndef TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_
#define TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "layout.h"
#include "socket.h"

namespace tfdist::collectives {

// A mapped segment; unmapped when it is destroyed.
class Segment {
 public:
  // Makes memory without a name, which ends with the last process that has it, whatever becomes of them: of this user alone
  // (mode 0600), and of a size that nobody can change. All of it is allocated: where there is too little this fails, and no
  // access ends the process later. Null on failure; `error` says why, and what to do.
  static std::shared_ptr<Segment> create(const std::uint64_t nonce[2], std::size_t members, std::string* error);

  // Where other processes of this user and this PID namespace open what this one has made: "/proc/17/fd/5". Until
  // `close_file`, and as long as this process lives.
  std::string path() const;

  // Opens what another member has made. Null if it is not that: it cannot be opened, is no memory of this kind, is another
  // user's, or holds another nonce.
  static std::shared_ptr<Segment> open(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                       std::string* error);

  // All members have opened it.
  void close_file() { file_.reset(); }

  // Memory of this process alone, for threads that are members.
  static std::shared_ptr<Segment> anonymous(std::size_t members, std::string* error);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  const Layout& layout() const { return layout_; }
  Header& header() { return *reinterpret_cast<Header*>(base_); }
  Member& member(std::size_t i) { return reinterpret_cast<Member*>(base_ + layout_.members_at)[i]; }
  Ticket& ticket(std::size_t number) {
    return *reinterpret_cast<Ticket*>(base_ + layout_.tickets_at + number * layout_.ticket_bytes);
  }
  Post* posts(Ticket& ticket) { return reinterpret_cast<Post*>(&ticket + 1); }
  std::uint32_t& small_link(std::size_t number) {
    return reinterpret_cast<std::uint32_t*>(base_ + layout_.links_at)[number];
  }
  char* small_slot(std::size_t number, std::size_t member) {
    return base_ + layout_.smalls_at + (number * layout_.members + member) * kSmallBytes;
  }
  Progress* progress(std::size_t area) {
    return reinterpret_cast<Progress*>(base_ + layout_.areas_at + area * layout_.area_bytes);
  }
  char* slot(std::size_t area, std::size_t member, std::uint64_t chunk) {
    const std::size_t behind = layout_.area_bytes - layout_.members * kSlots * layout_.chunk;
    return base_ + layout_.areas_at + area * layout_.area_bytes + behind +
           (member * kSlots + chunk % kSlots) * layout_.chunk;
  }

  // Writes into the segment that this process is the member: the nonce and the process's number.
  void come(std::size_t member);

  // Whether a member has written the nonce that the header has.
  bool has_come(std::size_t member);

 private:
  Segment(char* base, const Layout& layout, Descriptor file) : base_(base), layout_(layout), file_(std::move(file)) {}
  // A file, or none: memory of this process and its children.
  static std::shared_ptr<Segment> map(Descriptor file, const Layout& layout, std::string* error);
  void initialise(const std::uint64_t nonce[2]);

  char* base_;
  Layout layout_;
  Descriptor file_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_
