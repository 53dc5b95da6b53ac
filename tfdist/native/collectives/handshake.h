// How two members prove to each other, before anything else is read, that they belong to one start of one job.
//
//   the one that listens  ->  Challenge: a random number
//   the one that connects ->  Answer: who it is, a random number of its own, and the HMAC of all this with the job's key
//   the one that listens  ->  Welcome: the HMAC of the same with the same key
//   the one that connects ->  one byte: it has read the welcome, and will use this connection
//
// Every message has a fixed size, so a stranger makes a member read 100 bytes at most. What follows is not encrypted.

#ifndef TFDIST_NATIVE_COLLECTIVES_HANDSHAKE_H_
#define TFDIST_NATIVE_COLLECTIVES_HANDSHAKE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "sha256.h"

namespace tfdist::collectives {

using Nonce = std::array<std::uint8_t, 32>;
using Magic = std::array<char, 8>;

constexpr Magic kMagic = {'t', 'f', 'd', 'i', 's', 't', 'C', '2'};
constexpr char kConfirmed = 1;

struct Challenge {
  Magic magic = kMagic;
  Nonce nonce{};
};

// Who connects to whom. `generation` counts the starts of a job, so that a connection of the one before is refused.
struct Claim {
  std::uint64_t generation = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t members = 0;
  std::uint32_t reserved = 0;
};

struct Answer {
  Magic magic = kMagic;
  Nonce nonce{};
  Claim claim;
  Digest proof{};
};

struct Welcome {
  Digest proof{};
};

static_assert(sizeof(Challenge) == 40 && sizeof(Answer) == 96 && sizeof(Welcome) == 32);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "members exchange numbers as their machines store them");

namespace internal {

inline Digest proof(std::string_view key, std::string_view role, const Challenge& challenge, const Answer& answer) {
  std::string message(role);
  message.append(reinterpret_cast<const char*>(&challenge), sizeof challenge);
  message.append(reinterpret_cast<const char*>(&answer), sizeof answer - sizeof answer.proof);
  return hmac_sha256(key, message);
}

}  // namespace internal

inline Answer answer_to(const Challenge& challenge, const Claim& claim, const Nonce& nonce, std::string_view key) {
  Answer answer;
  answer.nonce = nonce;
  answer.claim = claim;
  answer.proof = internal::proof(key, "connects", challenge, answer);
  return answer;
}

inline bool proves(const Answer& answer, const Challenge& challenge, std::string_view key) {
  return answer.magic == kMagic &&
         equal_in_constant_time(answer.proof, internal::proof(key, "connects", challenge, answer));
}

inline Welcome welcome_for(const Answer& answer, const Challenge& challenge, std::string_view key) {
  return {internal::proof(key, "listens", challenge, answer)};
}

inline bool proves(const Welcome& welcome, const Answer& answer, const Challenge& challenge, std::string_view key) {
  return equal_in_constant_time(welcome.proof, internal::proof(key, "listens", challenge, answer));
}

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_HANDSHAKE_H_
