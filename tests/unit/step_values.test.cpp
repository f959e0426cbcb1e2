// What a batch is cut into, and what the micro-batches have returned is put together from: nested values, samples along
// any dimension, parts that are not cut, and types of a user.
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/memory.hpp>
#include <smp/distribution.hpp>
#include <smp/fields.hpp>
#include <smp/tensor.hpp>
#include <smp/train/batch.hpp>
#include <smp/train/step_output.hpp>

namespace {

using smp::Ids, smp::SampleRange, smp::Shape, smp::StepOutput;
using Values = smp::TensorOf<double>;

template <class T>
smp::TensorOf<T> tensor(smp::Memory& memory, const Shape& shape, const std::vector<T>& values) {
  smp::TensorOf<T> t(memory, shape);
  std::copy(values.begin(), values.end(), t.data());
  return t;
}
template <class T>
std::vector<T> list(const smp::TensorOf<T>& t) {
  return {t.begin(), t.end()};
}

/// A batch of words, which is no tensor.
struct Words {
  std::vector<std::string> words;
};

}  // namespace

template <>
struct smp::BatchTraits<Words> {
  static std::int64_t size(const Words& batch) { return static_cast<std::int64_t>(batch.words.size()); }
  static Words slice(const Words& batch, SampleRange range) {
    return {{batch.words.begin() + range.first, batch.words.begin() + range.last}};
  }
};

namespace {

/// Outputs by name.
struct Outputs {
  Values loss;
  smp::Dist<Values> hidden;
  static constexpr auto fields() {
    return smp::fields(smp::field("loss", &Outputs::loss), smp::field("hidden", &Outputs::hidden));
  }
};

TEST_CASE("nested outputs are combined tensor by tensor") {
  smp::Memory memory;
  StepOutput<std::tuple<Outputs, Values>> out(memory, 2);
  out.add(
      {{tensor<double>(memory, {}, {2}), {tensor<double>(memory, {2, 1}, {1, 2})}}, tensor<double>(memory, {1}, {10})},
      2);
  out.add(
      {{tensor<double>(memory, {}, {5}), {tensor<double>(memory, {2, 1}, {3, 4})}}, tensor<double>(memory, {1}, {40})},
      1);
  const auto [means, mean] = out.reduce_mean();  // two samples and one
  CHECK(list(means.loss) == std::vector<double>{3});
  CHECK(list(means.hidden.local)[0] == doctest::Approx(5.0 / 3));
  CHECK(list(mean)[0] == doctest::Approx(20));
  const auto [sums, sum] = out.reduce_sum();
  CHECK(list(sums.loss) == std::vector<double>{7});
  CHECK(list(sums.hidden.local) == std::vector<double>{4, 6});
  CHECK(list(sum) == std::vector<double>{50});
  const auto [stacks, stack] = out.stack();
  CHECK(list(stacks.loss) == std::vector<double>{2, 5});
  CHECK(stacks.hidden.local.shape() == Shape{2, 2, 1});
  CHECK(list(stack) == std::vector<double>{10, 40});

  StepOutput<std::tuple<Values, Ids>> rows(memory, 2);
  rows.add({tensor<double>(memory, {2, 1}, {1, 2}), tensor<std::int32_t>(memory, {2}, {7, 8})}, 2);
  rows.add({tensor<double>(memory, {1, 1}, {3}), tensor<std::int32_t>(memory, {1}, {9})}, 1);
  const auto [joined, ids] = rows.concat();
  CHECK(joined.shape() == Shape{3, 1});
  CHECK(list(joined) == std::vector<double>{1, 2, 3});
  CHECK(list(ids) == std::vector<std::int32_t>{7, 8, 9});
  CHECK_THROWS_AS((void)rows.stack(), smp::ConfigError);
  CHECK_THROWS_AS((void)StepOutput<std::tuple<Values>>(memory, 1).concat(), smp::ConfigError);
}

TEST_CASE("samples may be along any dimension, or nowhere") {
  smp::Memory memory;
  const Values x = tensor<double>(memory, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Values table = tensor<double>(memory, {5}, {1, 2, 3, 4, 5});
  const auto batch = std::tuple(x, table);
  const smp::SampleAxes axes{1, smp::not_split};
  CHECK(smp::batch_size(batch, axes) == 3);
  const auto [part, all] = smp::batch_slice(batch, SampleRange{1, 3}, axes, &memory);
  CHECK(part.shape() == Shape{2, 2, 2});
  CHECK(list(part) == std::vector<double>{2, 3, 4, 5, 8, 9, 10, 11});
  CHECK(all.data() == table.data());
  const auto [last, none] = smp::batch_slice(batch, SampleRange{1, 2}, {2, smp::not_split}, &memory);
  CHECK(list(last) == std::vector<double>{1, 3, 5, 7, 9, 11});
  CHECK_THROWS_WITH_AS(
      (void)smp::batch_size(batch, {3}),
      "smp: all tensors of a batch have the samples along dimension 3, but one has the shape [2, 3, 2]",
      smp::ConfigError);
  CHECK_THROWS_AS((void)smp::batch_slice(batch, SampleRange{0, 1}, axes), smp::ConfigError);
}

TEST_CASE("a type of a user says how it is cut") {
  smp::Memory memory;
  const std::tuple batch(Words{{"a", "b", "c"}}, tensor<double>(memory, {3}, {1, 2, 3}));
  CHECK(smp::batch_size(batch) == 3);
  const auto [words, values] = smp::batch_slice(batch, SampleRange{1, 3});
  CHECK(words.words == std::vector<std::string>{"b", "c"});
  CHECK(list(values) == std::vector<double>{2, 3});
  CHECK_THROWS_AS((void)smp::batch_size(std::tuple(Words{{"a"}}, tensor<double>(memory, {3}, {1, 2, 3}))),
                  smp::ConfigError);
}

}  // namespace
