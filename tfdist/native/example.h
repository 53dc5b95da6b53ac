// tf.train.Example of known features, for certain or not at all: what has another form is left to TensorFlow's parser,
// which decides what it means.

#ifndef TFDIST_NATIVE_EXAMPLE_H_
#define TFDIST_NATIVE_EXAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tfdist {

// The tags of a feature's list, a field with a length.
constexpr uint8_t kBytes = 0x0a, kFloats = 0x12, kIntegers = 0x1a;

// A feature, and where its values stand in the row of all values of its kind.
struct Wanted {
  std::string_view name;
  uint8_t tag;  // of its list
  int64_t count;  // of values; of bytes, for a feature whose one value is the bytes of an array
  int64_t place;
};

// Where the values of one example go.
struct Row {
  float* floats;
  int64_t* integers;
  uint8_t* bytes;
};

// A stretch of a message, which is read from its beginning on and never beyond its end.
class Stretch {
 public:
  Stretch(const uint8_t* begin, size_t size) : at_(begin), end_(begin + size) {}

  bool empty() const { return at_ == end_; }
  size_t size() const { return static_cast<size_t>(end_ - at_); }
  const uint8_t* data() const { return at_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(at_), size()}; }

  // Takes the content of the next field, if it has this tag and a length.
  bool Take(uint8_t tag, Stretch* content) {
    if (empty() || *at_ != tag) return false;
    ++at_;
    uint64_t length = 0;
    for (int shift = 0; shift < 7 * kLongestLength; shift += 7) {
      if (empty()) return false;
      const uint8_t byte = *at_++;
      length |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (length > size()) return false;
        *content = Stretch(at_, length);
        at_ += length;
        return true;
      }
    }
    return false;
  }

  // The same of a field that ends the message.
  bool TakeLast(uint8_t tag, Stretch* content) { return Take(tag, content) && empty(); }

  bool TakeVarint(int64_t* value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 70 && !empty(); shift += 7) {
      const uint8_t byte = *at_++;
      if (shift == 63 && byte > 1) return false;  // bits that no integer has
      found |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value = static_cast<int64_t>(found);
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kLongestLength = 4;  // bytes of a length; it may be padded to ten

  const uint8_t* at_;
  const uint8_t* end_;
};

class Parser {
 public:
  explicit Parser(std::vector<Wanted> wanted) : wanted_(std::move(wanted)), seen_(wanted_.size(), 0) {
    for (size_t i = 0; i < wanted_.size(); ++i) numbers_.emplace(wanted_[i].name, i);
  }

  // Whether the example has each feature once, as it is wanted, and nothing else. If not, the row may hold anything.
  bool operator()(const uint8_t* data, size_t size, const Row& row) {
    Stretch example(data, size), features(data, 0), entry(data, 0);
    if (!example.TakeLast(0x0a, &features)) return false;
    ++example_;
    size_t found = 0;
    for (; !features.empty(); ++found) {
      if (!features.Take(0x0a, &entry) || !ParseEntry(entry, row)) return false;
    }
    return found == wanted_.size();
  }

 private:
  bool ParseEntry(Stretch entry, const Row& row) {
    Stretch name = entry, feature = entry, list = entry, values = entry;
    if (!entry.Take(0x0a, &name) || !entry.TakeLast(0x12, &feature)) return false;
    const Wanted* wanted = Find(name.text());
    if (wanted == nullptr || !feature.TakeLast(wanted->tag, &list) || !list.TakeLast(0x0a, &values)) return false;
    if (wanted->tag == kIntegers) {
      for (int64_t i = 0; i < wanted->count; ++i) {
        if (!values.TakeVarint(&row.integers[wanted->place + i])) return false;
      }
      return values.empty();
    }
    const bool is_bytes = wanted->tag == kBytes;
    const uint64_t bytes = static_cast<uint64_t>(wanted->count) * (is_bytes ? 1 : sizeof(float));
    if (values.size() != bytes) return false;
    auto* to = is_bytes ? row.bytes + wanted->place : reinterpret_cast<uint8_t*>(row.floats + wanted->place);
    std::memcpy(to, values.data(), bytes);
    return true;
  }

  // The feature of this name, unless this example had it before.
  const Wanted* Find(std::string_view name) {
    if (++last_ >= wanted_.size()) last_ = 0;  // most files keep their features in one order
    if (wanted_.empty() || wanted_[last_].name != name) {
      const auto number = numbers_.find(name);
      if (number == numbers_.end()) return nullptr;
      last_ = number->second;
    }
    return std::exchange(seen_[last_], example_) == example_ ? nullptr : &wanted_[last_];
  }

  const std::vector<Wanted> wanted_;
  std::unordered_map<std::string_view, size_t> numbers_;
  std::vector<uint64_t> seen_;  // the last example that had each feature
  uint64_t example_ = 0;
  size_t last_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_NATIVE_EXAMPLE_H_
