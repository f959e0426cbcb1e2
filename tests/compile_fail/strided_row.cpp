// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: a contiguous buffer is needed here (std::span, std::vector, std::array); copy a strided view into

// A row of a matrix that is stored by columns, as Eigen has it: it knows where its elements begin and how many there
// are, but they do not lie one behind the other.
#include <cstddef>

#include <smp/comm/self.hpp>

struct Row {
  struct Iterator {
    using value_type = float;
    using difference_type = std::ptrdiff_t;
    float* at;
    float& operator*() const { return *at; }
    Iterator& operator++() {
      at += 2;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;
  };
  float* first;
  float* data() const { return first; }
  std::size_t size() const { return 3; }
  Iterator begin() const { return {first}; }
  Iterator end() const { return {first + 6}; }
};

void reduce_row(smp::comm::Self& world, Row& row) {
  smp::HostStream stream;
  world.all_reduce(stream, row, row, smp::sum);
}
