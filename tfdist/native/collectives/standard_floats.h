// The state of a processor's float unit while numbers are added up.

#ifndef TFDIST_NATIVE_COLLECTIVES_STANDARD_FLOATS_H_
#define TFDIST_NATIVE_COLLECTIVES_STANDARD_FLOATS_H_

#include <cfenv>

namespace tfdist::collectives {

// TensorFlow's threads take denormal numbers for zeros; sums must not depend on whose thread adds them.
class StandardFloats {
 public:
  StandardFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloats() { std::fesetenv(&before_); }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace tfdist::collectives

#endif  // TFDIST_NATIVE_COLLECTIVES_STANDARD_FLOATS_H_
