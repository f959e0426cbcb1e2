// What stages send each other: headers that say what it is, and what does not fit is refused.
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include <doctest/doctest.h>

#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/layers.hpp>
#include <smp/pipeline/parcels.hpp>

#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using Layer = Dense<double>;
using Net = smp::Sequential<smp::Repeat<Layer>, Layer>;
using Rows = smp::LayersOf<Net>;
using Values = smp::TensorOf<double>;

smp::Envelope<Rows> incoming(smp::Parcel<Rows>& parcel) {
  parcel.value.template emplace<Values>();
  smp::Envelope<Rows> e{&parcel, 1, true, {}, {}, {}};
  e.header.step = e.found.step = 7;
  e.header.stage = e.found.stage = 1;
  e.header.microbatch = e.found.microbatch = 3;
  e.found.tensors = 1;
  e.found.shapes[0] = {2, 4};
  e.found.elements[0] = smp::comm::Element::f64;
  return e;
}

std::string refusal(const smp::Envelope<Rows>& envelope, smp::Memory& memory) {
  smp::Envelope<Rows> copy = envelope;
  try {
    smp::make_tensors(copy, memory);
  } catch (const smp::CommError& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("what a message announces is made; another one, another type or number is refused in words") {
  smp::Memory memory;
  smp::Parcel<Rows> parcel;
  smp::Envelope<Rows> right = incoming(parcel);
  smp::make_tensors(right, memory);
  CHECK(std::get<Values>(parcel.value).shape() == smp::Shape{2, 4});
  const std::string expected =
      "smp: the pipeline expected the value of micro-batch 3 from stage 1 in step 7 from rank 1 of its PP group, ";
  for (const auto& [change, what] :
       {std::pair(
            +[](smp::ParcelHeader& h) { h.microbatch = 2; },
            "but found the value of micro-batch 2 from stage 1 in step 7"),
        std::pair(
            +[](smp::ParcelHeader& h) { h.stage = 0; }, "but found the value of micro-batch 3 from stage 0 in step 7"),
        std::pair(
            +[](smp::ParcelHeader& h) { h.step = 8; }, "but found the value of micro-batch 3 from stage 1 in step 8"),
        std::pair(
            +[](smp::ParcelHeader& h) { h.gradient = 1; },
            "but found the gradient of micro-batch 3 from stage 1 in step 7"),
        std::pair(
            +[](smp::ParcelHeader& h) { h.elements[0] = smp::comm::Element::f32; },
            "but its tensor 0 is of another type"),
        std::pair(
            +[](smp::ParcelHeader& h) { h.tensors = 2; }, "and 1 tensors, but found 2")}) {
    smp::Envelope<Rows> wrong = incoming(parcel);
    change(wrong.found);
    CHECK(refusal(wrong, memory) == expected + what + "; do all ranks of the group run the same batches?");
  }
}

TEST_CASE("the layers of a Sequential: elements of repetitions one by one, with names of the whole, or names given") {
  const auto layer = [](std::size_t) { return Layer(2, 2); };
  Net net(smp::Repeat<Layer>(3, layer), layer(0));
  const auto names = [](Net& of) {
    std::string text;
    smp::layers_of(of).for_each([&](const std::string& name, auto&) { text += name + " "; });
    return text;
  };
  CHECK(names(net) == "0.0 0.1 0.2 1 ");
  Net other = Net(smp::Repeat<Layer>(2, layer), layer(0)).named({"h", "head"});
  CHECK(names(other) == "h.0 h.1 head ");
  CHECK(smp::layers_of(other).size() == 3);
  std::string own;
  smp::layers_of(other).children({1, 3}, [&]<class M>(const std::string& name, M& child, smp::Unit*&, auto) {
    own += name;
    if constexpr (smp::Container<M>) {
      child.children([&](const std::string& element, auto&, auto&) { own += "." + element; });
    }
    own += " ";
  });
  CHECK(own == "h.1 head ");
}

}  // namespace
