// Checks the engine in shared memory by itself, without TensorFlow: `shared_memory NAME [TIMES]`.
//
//   threads    members are threads, for ThreadSanitizer: every operation, in orders that differ between members
//   hosts      the same over two hosts that are pretended, with TCP between them
//   processes  the same among processes, over memory that they share
//   waits      members that live and do not come to an operation, or come to another one: all are told who it was
//   kill       processes on one host or two, one of which is killed at a random moment, or stopped: the others' errors name it
//   user       a process of another user, which needs root: it opens no memory, joins no job, and keeps nobody waiting
//   restart    aborts, and starts again among the same processes
//   speed      prints times of all-reduces beside those of memcpy, of TIMES members
//
// It ends with 0 if everything was right, and says what was not.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "cases.h"
#include "parts.h"

using namespace tfdist::collectives::checks;

int main(int count, char** words) {
  const std::map<std::string, std::pair<void (*)(int), int>> parts = {
      {"threads", {threads, 4}}, {"hosts", {hosts, 2}},     {"processes", {processes, 4}},
      {"kill", {kills, 8}},      {"restart", {restart, 3}}, {"speed", {speed, 2}},
      {"waits", {waits, 1}},     {"user", {another_user, 2}},
  };
  const auto part = parts.find(count > 1 ? words[1] : "");
  if (part == parts.end()) {
    std::fprintf(stderr, "usage: %s threads|hosts|processes|waits|kill|user|restart|speed [TIMES]\n", words[0]);
    return 2;
  }
  const int times = count > 2 ? std::atoi(words[2]) : 0;
  part->second.first(times > 0 ? times : part->second.second);
  return wrong == 0 ? 0 : 1;
}
