// Operations among processes, and the memory that they share.

#include "processes.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "parts.h"

namespace tfdist::collectives::checks {
namespace {

// Memory is of one user, of one size, and of those who know its number; what else has its place is not even opened.
void check_memory() {
  const std::uint64_t nonce[2] = {1, 2}, other[2] = {1, 3};
  std::string error;
  const auto segment = Segment::create(nonce, 2, &error);
  if (segment == nullptr) return complain(error);
  const std::string path = segment->path();
  struct stat found;
  if (stat(path.c_str(), &found) != 0 || (found.st_mode & 0777) != 0600) complain("the memory's mode");
  if (truncate(path.c_str(), 1) == 0 || truncate(path.c_str(), found.st_size + 1) == 0) complain("the memory's size is changed");
  if (Segment::open(path, nonce, 2, &error) == nullptr) complain(error);
  if (Segment::open(path, other, 2, &error) != nullptr || !has(error, "another job's")) complain("another job: " + error);
  if (Segment::open(path, nonce, 3, &error) != nullptr || !has(error, "another size")) complain("another size: " + error);
  segment->close_file();
  if (Segment::open(path, nonce, 2, &error) != nullptr || !has(error, "--pid=host")) complain("a closed file: " + error);
  int both[2];
  if (pipe(both) != 0) complain("a pipe");
  const std::string pipe_path = "/proc/self/fd/" + std::to_string(both[0]);
  if (Segment::open(pipe_path, nonce, 2, &error) != nullptr || !has(error, "--pid=host")) complain("a pipe: " + error);
  close(both[0]);
  close(both[1]);
}

// Of which there is too little: an error that says what to do, and no signal.
void check_limit() {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::uint64_t nonce[2] = {1, 2};
    std::string error;
    const bool made = Segment::create(nonce, 2, &error) != nullptr;
    std::_Exit(!made && has(error, "1024 KiB") && has(error, "ulimit -f") ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0) complain("memory beyond a limit ends with " + std::to_string(status));
}

}  // namespace

void processes(int rounds) {
  check_memory();
  check_limit();
  for (const int members : {2, 3, 8}) {
    const auto codes = in_processes(members, 1, [&](Start start) {
      Engine engine(start.members, start.memory, nullptr, Engine::Options());
      const pid_t child = fork();
      if (child == 0) {  // what it ends is none of its parent's
        engine.abort("in a fork");
        engine.stop();
        std::_Exit(0);
      }
      int status = -1;
      if (waitpid(child, &status, 0) != child || status != 0) complain("a fork ended with " + std::to_string(status));
      run_cases(engine, members, rounds, 1000000);
    });
    for (const int code : codes) {
      if (code != 0) complain("a process of " + std::to_string(members) + " ended with " + std::to_string(code));
    }
  }
}

}  // namespace tfdist::collectives::checks
