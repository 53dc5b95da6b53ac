#include "squares.h"

namespace tfdist::stamps {

TFDIST_VECTORIZED double squares(const float* numbers, std::size_t count) {
  return squares_of<float>(numbers, count, [](float number) { return number; });
}

TFDIST_VECTORIZED double squares(const double* numbers, std::size_t count) {
  return squares_of<double>(numbers, count, [](double number) { return number; });
}

TFDIST_VECTORIZED double squares(const collectives::Half* numbers, std::size_t count) {
  return squares_of<float>(numbers, count, [](collectives::Half number) { return collectives::internal::widen(number); });
}

TFDIST_VECTORIZED double squares(const collectives::BHalf* numbers, std::size_t count) {
  return squares_of<float>(numbers, count, [](collectives::BHalf number) { return collectives::internal::widen(number); });
}

}  // namespace tfdist::stamps
