// Memory that processes of one host share: made by one of them, opened by the others, who prove that it is the same.

#ifndef TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_
#define TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "layout.h"

namespace tfdist::collectives {

// A mapped segment; unmapped when it is destroyed.
class Segment {
 public:
  // Makes the file, with mode 0600, which must not be there yet. All of its memory is allocated: where the file system has
  // too little of it this fails, and no access ends the process later. Null on failure, and `error` says why.
  static std::shared_ptr<Segment> create(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                         std::string* error);

  // Opens the file that another member has made, and writes into it what shows that it is the same memory. Null if it is
  // not: it cannot be opened, is another user's, or holds another nonce.
  static std::shared_ptr<Segment> open(const std::string& path, const std::uint64_t nonce[2], std::size_t members,
                                       std::string* error);

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
  Segment(char* base, const Layout& layout) : base_(base), layout_(layout) {}
  static std::shared_ptr<Segment> map(int descriptor, const Layout& layout, std::string* error);
  void initialise(const std::uint64_t nonce[2]);

  char* base_;
  Layout layout_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_SEGMENT_H_
