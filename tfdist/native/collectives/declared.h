// An operation that tells the other members what it is while it waits for them (agreement.h).

#ifndef TFDIST_NATIVE_COLLECTIVES_DECLARED_H_
#define TFDIST_NATIVE_COLLECTIVES_DECLARED_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operation.h"
#include "signature.h"
#include "transport.h"

namespace tfdist::collectives {

// The number that the messages of an operation carry, given the number under which members come to it.
constexpr std::uint64_t number_of(std::uint64_t id, const Doing& doing) {
  return id ^ (doing.signature * 0x9e3779b97f4a7c15u + doing.size) * 0xbf58476d1ce4e5b9u;
}

class Declared final : public Operation {
 public:
  // `ranks`: its members. `inner` does it, under `number_of(id, doing)`.
  Declared(Transport& transport, std::vector<int> ranks, std::uint64_t id, const Doing& doing,
           std::unique_ptr<Operation> inner)
      : transport_(transport), ranks_(std::move(ranks)), id_(id), doing_(doing), inner_(std::move(inner)) {}
  ~Declared() override { end(); }

  std::string what() const override { return described(doing_); }

  std::string waits_for() const override {
    std::string absent;
    for (const int rank : ranks_) {
      const bool is_there = entry_ == nullptr || rank == transport_.rank() ||
                            std::find(entry_->there.begin(), entry_->there.end(), rank) != entry_->there.end();
      if (!is_there) absent += (absent.empty() ? "" : ", ") + transport_.name(rank);
    }
    return absent.empty() ? inner_->waits_for() : "waiting for " + absent;
  }

 private:
  bool move() override {
    if (entry_ == nullptr) entry_ = transport_.agreement().begin(id_, doing_, ranks_);
    if (!entry_->difference.empty()) {
      fail(entry_->difference);
      return true;
    }
    const bool moved = inner_->advance();
    if (inner_->state() == State::kFailed) fail(inner_->error());
    if (inner_->state() == State::kDone) {
      end();
      finish();
    }
    return moved;
  }

  void stopped() override {
    inner_->fail(error());
    end();
  }

  void end() {
    if (entry_ != nullptr) transport_.agreement().end(id_);
    entry_ = nullptr;
  }

  Transport& transport_;
  const std::vector<int> ranks_;
  const std::uint64_t id_;
  const Doing doing_;
  const std::unique_ptr<Operation> inner_;
  const Agreement::Entry* entry_ = nullptr;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_DECLARED_H_
