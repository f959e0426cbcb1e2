// Parameters declare; the layout says where they are.
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/layout.hpp>
#include <smp/parameter.hpp>

using smp::Cut, smp::Init, smp::Parameter, smp::Shape, smp::Unit;

TEST_CASE("the slices of a cut parameter are a partition of it: any dimension, blocks and parts") {
  const Shape shape{6, 12, 2};
  for (const int dim : {0, 1}) {
    for (const int blocks : {1, 3}) {
      for (const int parts : {1, 2}) {
        std::set<std::size_t> seen;
        for (int part = 0; part < parts; ++part) {
          const Parameter p(shape, {}, Cut{dim, part, parts, blocks});
          for (std::size_t i = 0; i < p.size(); ++i) seen.insert(p.global_index(i));
        }
        CHECK(seen.size() == shape.elements());
        CHECK(*seen.rbegin() == shape.elements() - 1);
      }
    }
  }
}

TEST_CASE("query, key and value in one matrix are each cut: part 1 of 2 of [6, 2] in 3 blocks has rows 1, 3 and 5") {
  const Parameter p({6, 2}, {}, Cut{0, 1, 2, 3});
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < p.size(); ++i) found.push_back(p.global_index(i));
  CHECK(found == std::vector<std::size_t>{2, 3, 6, 7, 10, 11});
  CHECK_THROWS_WITH_AS(Parameter({6, 2}, {}, Cut{0, 0, 4}),
                       "smp: a parameter of shape [6, 2] cannot be cut into 1 x 4 parts along dimension 0",
                       smp::ConfigError);
}

TEST_CASE("a dimension that need not divide: all elements are in one part, the last parts have what is left") {
  for (const std::int64_t rows : {1, 2, 5, 7, 8, 65}) {
    for (const int dim : {0, 1}) {
      for (const int parts : {1, 2, 3, 4, 7}) {
        const smp::Shape shape = dim == 0 ? smp::Shape{rows, 3} : smp::Shape{3, rows};
        const std::int64_t most = (rows + parts - 1) / parts;
        std::set<std::size_t> seen;
        std::size_t elements = 0;
        for (int part = 0; part < parts; ++part) {
          const Parameter p(shape, {}, Cut{dim, part, parts, 1, true});
          CHECK(p.local_shape()[dim] <= most);
          elements += p.size();
          for (std::size_t i = 0; i < p.size(); ++i) seen.insert(p.global_index(i));
        }
        CHECK(elements == shape.elements());
        CHECK(seen.size() == shape.elements());
        CHECK(*seen.rbegin() == shape.elements() - 1);
      }
    }
  }
  CHECK(Parameter({65, 2}, {}, Cut{0, 1, 4, 1, true}).local_shape() == smp::Shape{17, 2});
  CHECK(Parameter({65, 2}, {}, Cut{0, 3, 4, 1, true}).local_shape() == smp::Shape{14, 2});
  CHECK(Parameter({65, 2}, {}, Cut{0, 3, 4, 1, true}).global_index(0) == 102);
}

TEST_CASE("initial values depend on seed, name and position only, and have the distribution they state") {
  const smp::RandomStream stream{1, smp::stream_of("h.0.weight")};
  const Init normal{Init::Kind::normal, 0.02};
  double sum = 0, squares = 0;
  constexpr int n = 20000;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double x = normal.value(stream, i);
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / n) < 5 * 0.02 / std::sqrt(double{n}));
  CHECK(std::abs(squares / n / (0.02 * 0.02) - 1) < 5 * std::sqrt(2.0 / n));
  CHECK(normal.value(stream, 77) == normal.value(smp::RandomStream{1, smp::stream_of("h.0.weight")}, 77));
  CHECK(Init{Init::Kind::ones}.value(stream, 3) == 1);
  CHECK(std::abs(Init{Init::Kind::uniform, 0.5}.value(stream, 3)) <= 0.5);
}

namespace {

struct Linear {
  Parameter weight{{4, 3}};
  Parameter bias{{4}};
  static constexpr auto fields() {
    return smp::fields(smp::field("bias", &Linear::bias, {.decay = false}), smp::field("weight", &Linear::weight));
  }
};

struct Tied {
  Parameter weight;
  Parameter frozen{{2}, {}, {}, true};
  explicit Tied(const Shape& shape) : weight(shape) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &Tied::weight, {.tie = "wte"}), smp::field("frozen", &Tied::frozen));
  }
};

struct Repeated {
  static constexpr bool elements_are_units = true;
  std::vector<Linear> each{2};
  std::vector<Unit*> slots{2};
  template <class F>
  void children(F&& f) {
    for (std::size_t i = 0; i < each.size(); ++i) f(std::to_string(i), each[i], slots[i]);
  }
};

struct Model {  // written by hand: the members but the repetition are the root unit
  Tied embedding{{5, 3}};
  Repeated h;
  Tied head{{5, 3}};
  static constexpr auto fields() {
    return smp::fields(smp::field("embedding", &Model::embedding), smp::field("h", &Model::h),
                       smp::field("head", &Model::head));
  }
};

}  // namespace

TEST_CASE("layout: a repetition's elements are units, the rest is the root; a tie is a block of its own") {
  Model model;
  smp::Layout layout(model);
  REQUIRE(layout.units().size() == 3);
  CHECK(layout.units()[1].path == "h.0");
  CHECK(model.h.slots[1] == &layout.units()[2]);

  REQUIRE(layout.blocks().size() == 4);  // wte, frozen, h.0, h.1
  CHECK(layout.blocks()[0].tie == "wte");
  CHECK(layout.blocks()[1].frozen);
  CHECK(layout.blocks()[1].size == 4);
  CHECK(model.head.weight.block() == model.embedding.weight.block());

  const smp::Block& h0 = layout.blocks()[2];  // decayed parameters first, whatever the order of the fields
  REQUIRE(h0.segments.size() == 2);
  CHECK(h0.segments[0].name == "h.0.weight");
  CHECK(h0.segments[1].name == "h.0.bias");
  CHECK(h0.segments[1].begin == 12);
  CHECK(h0.size == 16);
}

TEST_CASE("values are where the strategy says, and nowhere else") {
  Linear linear;
  smp::Layout layout(linear);
  CHECK_THROWS_AS((void)linear.weight.value(), smp::Error);
  std::vector<float> storage(16, 1.5F);
  layout.blocks()[0].value = storage.data();
  CHECK(linear.bias.value().data() == storage.data() + 12);
  CHECK(linear.bias.value().shape() == Shape{4});
  CHECK_THROWS_AS((void)linear.bias.grad(), smp::Error);
}

TEST_CASE("tied parameters of different shapes are refused, by name") {
  Model model;
  model.head = Tied({5, 4});
  CHECK_THROWS_WITH_AS(
      smp::Layout layout(model),
      "smp: head.weight is tied to \"wte\", but has the shape [5, 4] where that has [5, 3], or another "
      "cut or type",
      smp::ConfigError);
}
