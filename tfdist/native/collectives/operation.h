// One member's part of a collective operation, as a state machine that whoever has time may move on.

#ifndef TFDIST_NATIVE_COLLECTIVES_OPERATION_H_
#define TFDIST_NATIVE_COLLECTIVES_OPERATION_H_

#include <string>
#include <utility>

namespace tfdist::collectives {

enum class State { kRunning, kDone, kFailed };

// Not safe for threads: one thread at a time moves an operation. After it is done or has failed, no memory that was given
// to it is used any more.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  // Moves what can be moved without waiting; whether anything moved. Nothing happens once it is done or has failed.
  bool advance() { return state_ == State::kRunning && move(); }

  State state() const { return state_; }
  const std::string& error() const { return error_; }  // says which member is the cause, as far as that is known

  // For messages: what it is, and for whom it waits ("waiting for member 1"); empty where that is not known.
  virtual std::string what() const { return "an operation"; }
  virtual std::string waits_for() const { return ""; }

  // Ends it with an error, if it still runs: a deadline has passed, a member has gone, or somebody has given up.
  void fail(std::string error) {
    if (state_ != State::kRunning) return;
    error_ = std::move(error);
    state_ = State::kFailed;
    stopped();
  }

 protected:
  virtual bool move() = 0;

  // Called once by `fail`: lets go of what `move` has begun, such as buffers that a transport still writes to.
  virtual void stopped() {}

  void finish() { state_ = State::kDone; }

 private:
  State state_ = State::kRunning;
  std::string error_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_OPERATION_H_
