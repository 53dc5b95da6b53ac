#include "replicas.h"

#include <algorithm>
#include <utility>

#include "helpers.h"
#include "engine.h"

namespace tfdist::collectives {
namespace {

constexpr std::size_t kChunk = 128 * 1024;  // of a part that one thread does: it stays in a near cache

// Reduces bytes that lie in each replica's memory into all of `into`, of which any may be one of `from`.
void reduce_chunk(DType dtype, Op op, const std::vector<const char*>& from, const std::vector<char*>& into,
                  std::size_t begin, std::size_t end) {
  std::vector<const void*> parts;
  for (const char* one : from) parts.push_back(one + begin);
  reduce(dtype, op, into[0] + begin, parts.data(), parts.size(), (end - begin) / size_of(dtype));
  for (std::size_t i = 1; i < into.size(); ++i) copy(into[i] + begin, into[0] + begin, end - begin);
}

// What is done in parts of about kChunk bytes, side by side; what is no more than one part in all, by one thread.
class Work {
 public:
  using Do = std::function<void(std::size_t begin, std::size_t end)>;

  void add(std::size_t bytes, Do what) {
    const auto shared = std::make_shared<const Do>(std::move(what));
    for (std::size_t begin = 0; begin < bytes; begin += kChunk) {
      parts_.push_back({shared, begin, std::min(bytes, begin + kChunk)});
    }
    bytes_ += bytes;
  }

  void add_copy(char* into, const char* from, std::size_t bytes) {
    if (into == from) return;
    add(bytes, [=](std::size_t begin, std::size_t end) { copy(into + begin, from + begin, end - begin); });
  }

  void run() const {
    const auto part = [this](std::size_t i) { (*parts_[i].what)(parts_[i].begin, parts_[i].end); };
    if (bytes_ > kChunk) return helpers_of_process().run(parts_.size(), part);
    const StandardFloats floats;
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i);
  }

 private:
  struct Part {
    std::shared_ptr<const Do> what;
    std::size_t begin, end;
  };
  std::vector<Part> parts_;
  std::size_t bytes_ = 0;
};

void add_all_reduce(const std::vector<Share*>& shares, Work& work) {
  for (std::size_t piece = 0; piece < shares[0]->pieces.size(); ++piece) {
    std::vector<const char*> from;
    std::vector<char*> into;
    for (const Share* share : shares) {
      from.push_back(share->pieces[piece].from);
      into.push_back(share->pieces[piece].into);
    }
    work.add(shares[0]->pieces[piece].bytes,
              [dtype = shares[0]->dtype, op = shares[0]->op, from, into](std::size_t begin, std::size_t end) {
                reduce_chunk(dtype, op, from, into, begin, end);
              });
  }
}

void add_scatter(const std::vector<Share*>& shares, Work& work) {
  for (std::size_t me = 0; me < shares.size(); ++me) {
    const std::size_t first = shares[0]->begins[me], bytes = shares[0]->begins[me + 1] - first;
    char* into = shares[me]->pieces[0].into;
    std::vector<const char*> from;
    for (const Share* share : shares) from.push_back(share->pieces[0].from + first);
    if (shares[0]->what == What::kReduceScatter) {
      work.add(bytes, [dtype = shares[0]->dtype, op = shares[0]->op, from, into](std::size_t begin, std::size_t end) {
        reduce_chunk(dtype, op, from, {into}, begin, end);
      });
    } else {
      for (std::size_t i = 0; i < from.size(); ++i) work.add_copy(into + i * bytes, from[i], bytes);
    }
  }
}

std::string add_gather(const std::vector<Share*>& shares, Work& work) {
  std::uint64_t rows = 0;
  std::size_t bytes = 0;
  for (const Share* share : shares) {
    rows += share->rows;
    bytes += share->pieces[0].bytes;
  }
  std::vector<char*> into;
  for (const Share* share : shares) into.push_back(share->allocate(rows));
  for (char* one : into) {
    if (one == nullptr && bytes > 0) return "no memory for " + std::to_string(bytes) + " bytes";
  }
  std::size_t at = 0;
  for (const Share* share : shares) {
    for (char* one : into) work.add_copy(one + at, share->pieces[0].from, share->pieces[0].bytes);
    at += share->pieces[0].bytes;
  }
  return "";
}

void add_copies(const std::vector<Share*>& shares, Work& work) {
  const Share& source = *shares[shares[0]->root];
  for (const Share* share : shares) {
    for (std::size_t i = 0; i < source.pieces.size(); ++i) {
      if (share->pieces[i].into != nullptr) {
        work.add_copy(share->pieces[i].into, source.pieces[i].from, source.pieces[i].bytes);
      }
    }
  }
}

// What has to be alike on all replicas, in bytes: of a gathering those of a row.
std::size_t size_of(const Share& share) {
  if (share.what == What::kAllGather) return share.row_bytes;
  std::size_t total = 0;
  for (const Piece& piece : share.pieces) total += piece.bytes;
  return total;
}

Doing doing(const Share& share) { return {signature(share.what, share.dtype, share.op, share.root), size_of(share)}; }

// Whether tensors are of the same sizes; those of a gathering may differ.
bool alike(const Share& one, const Share& other) {
  return one.what == What::kAllGather ||
         std::equal(one.pieces.begin(), one.pieces.end(), other.pieces.begin(), other.pieces.end(),
                    [](const Piece& a, const Piece& b) { return a.bytes == b.bytes; });
}

}  // namespace

std::string perform(const std::vector<int>& ranks, const std::vector<Share*>& shares) {
  for (std::size_t i = 1; i < shares.size(); ++i) {
    const Doing first = doing(*shares[0]), other = doing(*shares[i]);
    if (first != other) return difference(ranks[0], first, ranks[i], other);
    if (!alike(*shares[0], *shares[i])) {
      return "Members do different things: members " + std::to_string(ranks[0]) + " and " + std::to_string(ranks[i]) +
             " run " + described(first) + " in tensors of other sizes";
    }
  }
  Work work;
  switch (shares[0]->what) {
    case What::kAllReduce:
      add_all_reduce(shares, work);
      break;
    case What::kReduceScatter:
    case What::kAllToAll:
      add_scatter(shares, work);
      break;
    case What::kAllGather:
      if (const std::string error = add_gather(shares, work); !error.empty()) return error;
      break;
    case What::kBroadcast:
    case What::kSend:
      add_copies(shares, work);
      break;
  }
  work.run();
  return "";
}

void Replicas::meet(std::uint64_t key, const std::vector<int>& ranks, std::size_t me, Share share) {
  Meeting complete;
  std::string error;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    const std::uint64_t number = ++last_;
    if (!broken_.empty()) {
      error = kBroken + broken_;
    } else if (!share.watch([all = shared_from_this(), key, number] { all->withdraw(key, number); })) {
      error = std::string(kWithdrawn) + "it was broken off before this operation began";
    } else {
      std::list<Meeting>& under_way = meetings_[key];
      auto own = std::find_if(under_way.begin(), under_way.end(), [me](const Meeting& one) { return !one[me]; });
      if (own == under_way.end()) own = under_way.emplace(under_way.end(), ranks.size());
      (*own)[me] = Entry{std::move(share), number};
      if (std::all_of(own->begin(), own->end(), [](const auto& entry) { return entry.has_value(); })) {
        complete = std::move(*own);
        under_way.erase(own);
        if (under_way.empty()) meetings_.erase(key);
      }
    }
  }
  if (!error.empty()) return share.done(error);
  if (complete.empty()) return;
  std::vector<Share*> shares;
  for (auto& entry : complete) shares.push_back(&entry->share);
  error = perform(ranks, shares);
  for (Share* one : shares) {
    one->unwatch();
    one->done(error);
  }
}

void Replicas::withdraw(std::uint64_t key, std::uint64_t number) {
  std::optional<Entry> withdrawn;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = meetings_.find(key);
    if (found == meetings_.end()) return;
    for (auto meeting = found->second.begin(); meeting != found->second.end(); ++meeting) {
      for (auto& entry : *meeting) {
        if (entry && entry->number == number) std::swap(entry, withdrawn);
      }
      if (!withdrawn) continue;
      const bool empty = std::none_of(meeting->begin(), meeting->end(), [](const auto& one) { return one.has_value(); });
      if (empty) found->second.erase(meeting);
      break;
    }
    if (found->second.empty()) meetings_.erase(found);
  }
  if (withdrawn) withdrawn->share.done(std::string(kWithdrawn) + "this operation waited for another replica");
}

void Replicas::abort(const std::string& reason) {
  std::unordered_map<std::uint64_t, std::list<Meeting>> ended;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (broken_.empty()) broken_ = reason;
    ended.swap(meetings_);
  }
  for (auto& [key, meetings] : ended) {
    for (Meeting& meeting : meetings) {
      for (auto& entry : meeting) {
        if (!entry) continue;
        entry->share.unwatch();
        entry->share.done(kBroken + reason);
      }
    }
  }
}

}  // namespace tfdist::collectives
