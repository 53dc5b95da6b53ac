// The parts of the program.

#ifndef TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_
#define TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_

namespace tfdist::collectives::checks {

void threads(int rounds);
void hosts(int rounds);
void processes(int rounds);
void waits(int);
void kills(int times);
void restart(int times);
void speed(int members);

}  // namespace tfdist::collectives::checks

#endif  // TFDIST_TESTS_NATIVE_SHARED_MEMORY_PARTS_H_
