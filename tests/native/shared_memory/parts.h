// The parts of the program, and what several of them need.

#ifndef TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_
#define TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_

#include <string>

namespace tfdist::collectives::checks {

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void threads(int rounds);
void hosts(int rounds);
void processes(int rounds);
void waits(int);
void kills(int times);
void another_user(int rounds);
void restart(int times);
void speed(int members);

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_
