// SPDX-License-Identifier: Apache-2.0
// needs: io
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <doctest/doctest.h>

#include <smp/comm/launch.hpp>
#include <smp/comm/self.hpp>
#include <smp/comm/threads.hpp>
#include <smp/io/parameters.hpp>
#include <smp/io/safetensors.hpp>
#include <smp/io/sha256.hpp>

namespace {

using smp::io::SafetensorsWriter, smp::io::tensor_header;
namespace fs = std::filesystem;

std::string digest(std::string_view text, std::size_t piece) {
  smp::io::Sha256 sha;
  for (; text.size() > piece; text.remove_prefix(piece)) sha.update(std::as_bytes(std::span(text.substr(0, piece))));
  sha.update(std::as_bytes(std::span(text)));
  return sha.hex();
}

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A folder of its own, gone at the end.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("smp_io_test_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

struct Tiny {
  smp::ParameterOf<double> late{{2}}, early{{2, 1}}, tied{{1}}, again{{1}};
  static constexpr auto fields() {
    return smp::fields(smp::field("z.weight", &Tiny::late), smp::field("a.weight", &Tiny::early, {.decay = false}),
                       smp::field("head", &Tiny::again, {.tie = "wte"}), smp::field("m", &Tiny::tied, {.tie = "wte"}));
  }
};

}  // namespace

TEST_CASE("SHA-256 gives the digests of FIPS 180-4") {
  CHECK(digest("", 1) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest("abc", 2) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest(std::string(1000000, 'a'), 4099) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("a safetensors file is a length, a header and the elements") {
  const Folder folder;
  const fs::path file = folder.path / "two.safetensors";
  const std::vector<float> a{1, -2};
  const double b = 0.5;
  SafetensorsWriter writer(file, {tensor_header<float>("a", {2, 1}), tensor_header<double>("b\"c", {})},
                           {{"format", "smp"}});
  writer.append(std::as_bytes(std::span(a).first(1)));
  writer.append(std::as_bytes(std::span(a).last(1)));
  CHECK_FALSE(fs::exists(file));
  writer.append(std::as_bytes(std::span(&b, 1)));
  writer.commit();

  const std::string header =
      R"({"__metadata__":{"format":"smp"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b\"c":{"dtype":"F64","shape":[],"data_offsets":[8,16]}})";
  const std::string text = content(file);
  std::uint64_t length = 0;
  REQUIRE(text.size() > sizeof length);
  std::memcpy(&length, text.data(), sizeof length);
  CHECK(length % 8 == 0);
  CHECK(length - header.size() < 8);
  CHECK(text.substr(8, header.size()) == header);
  CHECK(text.substr(8 + length) == std::string("\0\0\x80\x3f\0\0\0\xc0\0\0\0\0\0\0\xe0\x3f", 16));
}

TEST_CASE("a file that was not completed does not replace an older one") {
  const Folder folder;
  const fs::path file = folder.path / "old";
  std::ofstream(file) << "old";
  {
    SafetensorsWriter writer(file, {tensor_header<double>("x", {2})});
    const std::vector<double> three(3);
    CHECK_THROWS_WITH_AS(
        writer.append(std::as_bytes(std::span(three))),
        ("smp: the file '" + file.string() + "' would have more elements than its header announces").c_str(),
        smp::ConfigError);
    writer.append(std::as_bytes(std::span(three).first(1)));
    CHECK_THROWS_WITH_AS(
        writer.commit(),
        ("smp: the file '" + file.string() + "' would have 8 bytes fewer than its header announces").c_str(),
        smp::ConfigError);
  }
  CHECK(content(file) == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("what cannot be a file is said at once") {
  const Folder folder;
  CHECK_THROWS_WITH_AS(SafetensorsWriter("/nowhere/file", {}), "smp: cannot write '/nowhere/file'", smp::ConfigError);
  const fs::path file = folder.path / "twice";
  CHECK_THROWS_WITH_AS(SafetensorsWriter(file, {tensor_header<float>("x", {1}), tensor_header<float>("x", {2})}),
                       ("smp: the file '" + file.string() + "' would have two tensors called 'x'").c_str(),
                       smp::ConfigError);
}

/// Every parameter is here.
struct Placed {
  smp::Layout* model;
  smp::Layout& layout() { return *model; }
  template <class Ctx, class F>
  void with_values(Ctx&, smp::Block& block, F&& f) {
    f(block);
  }
};

/// Every group has one rank.
struct OneRank {
  struct Groups {
    smp::comm::Self self;
    smp::comm::Self& operator[](smp::Group) { return self; }
  } all;
  Groups& groups() { return all; }
};

TEST_CASE("parameters are in the order of their paths, tied ones once") {
  Tiny model;
  smp::Layout layout(model);
  double next = 1;
  std::vector<std::vector<double>> storage;
  for (smp::Block& block : layout.blocks()) {
    auto& values = storage.emplace_back(block.size);
    for (double& v : values) v = next++;
    block.value = values.data();
  }
  OneRank ctx;
  Placed strategy{&layout};
  std::vector<std::string> names;
  std::vector<double> in_order;
  smp::io::for_each_whole<double>(ctx, strategy, [&](const std::string& name, std::span<const double> values) {
    names.push_back(name);
    in_order.insert(in_order.end(), values.begin(), values.end());
  });
  CHECK(names == std::vector<std::string>{"a.weight", "wte", "z.weight"});
  const auto headers = smp::io::headers<double>(layout);
  REQUIRE(headers.size() == 3);
  CHECK(headers[0].shape == smp::Shape{2, 1});
  // z.weight, which has weight decay, comes first in its block
  CHECK(std::vector<double>(in_order.begin(), in_order.begin() + 2) == std::vector<double>{3, 4});
  CHECK(std::vector<double>(in_order.end() - 2, in_order.end()) == std::vector<double>{1, 2});

  CHECK_THROWS_AS(smp::io::for_each_whole<float>(ctx, strategy, [](auto&&...) {}), smp::ConfigError);
}

TEST_CASE("a parameter of which the ranks have parts is put together, whatever the cut") {
  for (const smp::Cut cut : {smp::Cut{0, 0, 3}, smp::Cut{1, 0, 3}, smp::Cut{0, 0, 3, 2}, smp::Cut{1, 0, 3, 1, true}}) {
    smp::comm::launch(3, [&](smp::comm::Threads& world) {
      const smp::ParameterBase p({6, 12}, {}, {cut.dim, world.rank(), 3, cut.blocks, cut.uneven});
      std::vector<double> part(p.size());
      for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<double>(p.global_index(i));
      const auto whole = smp::io::joined(p, std::span<const double>(part), world);
      for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == static_cast<double>(i));
    });
  }
}
