#include "planned_operation.h"

#include <algorithm>
#include <cstdio>

namespace tfdist::collectives {
namespace {

// How much has to be ready before it is sent on. Less would cost more calls, more would leave the line idle for longer.
constexpr std::size_t kPieceBytes = 128 << 10;
// Elements that are combined in one go, so that the rest of the engine has its turn.
constexpr std::size_t kCombineBytes = 1 << 20;
// Who has not answered for so long is named as the one to blame.
constexpr double kSilentSeconds = 0.3;

bool overlap(const Step& one, const Step& other) {
  return one.output == other.output && one.begin < other.begin + other.count && other.begin < one.begin + one.count;
}

}  // namespace

PlannedOperation::PlannedOperation(Transport& transport, Members members, const Plan& plan, const Arrays& arrays,
                                   std::uint64_t id)
    : transport_(transport),
      members_(std::move(members)),
      arrays_(arrays),
      item_(size_of(arrays.dtype)),
      id_(id),
      steps_(plan.size()) {
  for (std::size_t i = 0; i < plan.size(); ++i) {
    Running& running = steps_[i];
    running.step = plan[i];
    const bool is_send = plan[i].action == Action::kSend;
    // A copy needs no waiting: what it brings has been made of what this member sent before from the same range.
    for (std::size_t j = 0; j < i && plan[i].action != Action::kCopy; ++j) {
      if (overlap(plan[i], plan[j]) && !(is_send && plan[j].action == Action::kSend)) running.after.push_back(j);
    }
    running.is_buffered = plan[i].action == Action::kCombine || (plan[i].action == Action::kAdd && !running.after.empty());
    running.requests.resize(plan[i].action == Action::kCombine ? members_.ranks.size() - 1 : 1);
    live_.push_back(i);
  }
}

char* PlannedOperation::at(const Step& step, std::size_t element) const {
  return static_cast<char*>(step.output ? arrays_.output : arrays_.data) + (step.begin + element) * item_;
}

// The rank in the transport that a request is about.
int PlannedOperation::from(const Running& running, std::size_t request) const {
  if (running.step.action != Action::kCombine) return members_.ranks[running.step.member];
  const std::size_t mine = static_cast<std::size_t>(members_.mine);
  return members_.ranks[request < mine ? request : request + 1];
}

// Everything that is to come is asked for at once, so that nobody waits for permission to send.
void PlannedOperation::begin() {
  is_begun_ = true;
  for (Running& running : steps_) {
    const Step& step = running.step;
    if (step.action == Action::kSend) continue;
    const std::size_t bytes = step.count * item_;
    if (running.is_buffered) running.buffer = transport_.buffers().take(bytes * running.requests.size());
    for (std::size_t i = 0; i < running.requests.size(); ++i) {
      const int rank = from(running, i);
      const Tag tag{id_, step.tag};
      Request* request = &running.requests[i];
      if (running.is_buffered) {
        transport_.receive(rank, tag, running.buffer.data() + i * bytes, bytes, request);
      } else if (step.action == Action::kCopy) {
        transport_.receive(rank, tag, at(step, 0), bytes, request);
      } else {
        const auto consumer = [this, &running](const char* data, std::size_t size) {
          accumulate(arrays_.dtype, arrays_.op, at(running.step, running.done), data, size / item_);
          running.done += size / item_;
        };
        transport_.receive_pieces(rank, tag, bytes, item_, consumer, request);
      }
    }
  }
}

// Elements from the first on for which nothing earlier is outstanding.
std::size_t PlannedOperation::ready(const Running& running) const {
  const std::size_t begin = running.step.begin, end = begin + running.step.count;
  std::size_t limit = end;
  for (const std::size_t index : running.after) {
    const Running& earlier = steps_[index];
    const std::size_t earlier_end = std::min(end, earlier.step.begin + earlier.step.count);
    const std::size_t first_open = std::max(begin, earlier.step.begin + earlier.done);
    if (first_open < earlier_end) limit = std::min(limit, first_open);
  }
  return limit - begin;
}

bool PlannedOperation::move() {
  if (!is_begun_) begin();
  bool moved = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    Running& running = steps_[live_[i]];
    for (const Request& request : running.requests) {
      if (request.failed()) {
        fail(request.error());
        return true;
      }
    }
    moved |= move(running);
    if (running.done < running.step.count) live_[kept++] = live_[i];
  }
  live_.resize(kept);
  if (live_.empty()) {
    is_over_ = true;
    finish();
    return true;
  }
  return moved;
}

bool PlannedOperation::move(Running& running) {
  const std::size_t before = running.done;
  switch (running.step.action) {
    case Action::kSend:
      if (send(running, ready(running))) return true;
      break;
    case Action::kCopy:
      running.done = running.requests[0].moved() / item_;
      break;
    case Action::kAdd:
      if (running.is_buffered) add(running, ready(running));
      break;
    case Action::kCombine:
      combine(running, ready(running));
      break;
  }
  return running.done != before;
}

bool PlannedOperation::send(Running& running, std::size_t ready) {
  const Step& step = running.step;
  bool sent = false;
  if (ready > running.asked && (ready == step.count || (ready - running.asked) * item_ >= kPieceBytes)) {
    transport_.send_part(members_.ranks[step.member], {id_, step.tag}, at(step, running.asked),
                         (ready - running.asked) * item_, step.count * item_, &running.requests[0]);
    running.asked = ready;
    sent = true;
  }
  running.done = running.requests[0].moved() / item_;
  return sent;
}

bool PlannedOperation::add(Running& running, std::size_t ready) {
  const std::size_t end = std::min(ready, running.requests[0].moved() / item_);
  if (end <= running.done) return false;
  accumulate(arrays_.dtype, arrays_.op, at(running.step, running.done), running.buffer.data() + running.done * item_,
             end - running.done);
  running.done = end;
  return true;
}

bool PlannedOperation::combine(Running& running, std::size_t ready) {
  std::size_t end = ready;
  for (const Request& request : running.requests) end = std::min(end, request.moved() / item_);
  end = std::min(end, running.done + kCombineBytes / item_);
  if (end <= running.done) return false;
  std::vector<const void*> parts;
  for (std::size_t i = 0; i < running.requests.size(); ++i) {
    if (static_cast<int>(i) == members_.mine) parts.push_back(at(running.step, running.done));
    parts.push_back(running.buffer.data() + (i * running.step.count + running.done) * item_);
  }
  if (members_.mine == members_.size() - 1) parts.push_back(at(running.step, running.done));
  reduce(arrays_.dtype, arrays_.op, at(running.step, running.done), parts.data(), parts.size(), end - running.done);
  running.done = end;
  return true;
}

std::string PlannedOperation::waits_for() const {
  int silent = -1;
  for (const int rank : members_.ranks) {
    if (rank == transport_.rank() || transport_.silent_seconds(rank) < kSilentSeconds) continue;
    if (silent < 0 || transport_.silent_seconds(rank) > transport_.silent_seconds(silent)) silent = rank;
  }
  if (silent >= 0) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f s", transport_.silent_seconds(silent));
    return transport_.name(silent) + " has not answered for " + seconds + "; its process or its host is stopped, or cut off";
  }
  std::string names;
  std::vector<bool> named(static_cast<std::size_t>(transport_.size()));
  for (const std::size_t index : live_) {
    const Running& running = steps_[index];
    for (std::size_t i = 0; i < running.requests.size(); ++i) {
      const int rank = from(running, i);
      if (running.requests[i].done() || named[rank]) continue;
      named[rank] = true;
      names += (names.empty() ? "" : ", ") + transport_.name(rank);
    }
  }
  return names.empty() ? "it has only just begun" : "waiting for " + names + ", which answers, but has not come so far";
}

void PlannedOperation::cancel() {
  if (!is_begun_ || is_over_) return;
  is_over_ = true;
  for (Running& running : steps_) {
    for (std::size_t i = 0; i < running.requests.size(); ++i) {
      if (!running.requests[i].done()) transport_.cancel(from(running, i), &running.requests[i]);
    }
  }
}

}  // namespace tfdist::collectives
