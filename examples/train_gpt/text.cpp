// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

#include <smp/error.hpp>

namespace {

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) throw smp::ConfigError("cannot read '" + file + "', or it is empty");
  return text;
}

/// Length of the character at the front: a byte, and the bytes 10xxxxxx that continue it in UTF-8.
std::size_t character_at_front(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0u) == 0x80u) ++length;
  return length;
}

}  // namespace

Text::Text(const Options& options)
    : places_{static_cast<std::uint64_t>(options.seed), smp::stream_of("places of samples")} {
  const std::string text = read(options.data);
  if (options.tokens == "bytes") {
    for (int byte = 0; byte < 256; ++byte) vocabulary_.emplace_back(1, static_cast<char>(byte));
    for (const char c : text) tokens_.push_back(static_cast<unsigned char>(c));
  } else {
    std::map<std::string_view, std::int32_t> number;  // in the order of code points
    const auto for_each_character = [&text](auto f) {
      for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(character_at_front(rest))) {
        f(rest.substr(0, character_at_front(rest)));
      }
    };
    for_each_character([&](std::string_view c) { number.emplace(c, 0); });
    for (auto& [c, n] : number) {
      n = static_cast<std::int32_t>(vocabulary_.size());
      vocabulary_.emplace_back(c);
    }
    for_each_character([&](std::string_view c) { tokens_.push_back(number.find(c)->second); });
  }
  learnt_ = static_cast<std::size_t>(static_cast<double>(tokens_.size()) * (1 - options.heldout));
  if (learnt_ <= static_cast<std::size_t>(options.seq)) {
    throw smp::ConfigError("'" + options.data + "' leaves " + std::to_string(learnt_) + " tokens to learn, but --seq " +
                           std::to_string(options.seq) + " needs at least " + std::to_string(options.seq + 1));
  }
  if (options.heldout > 0 && heldout().size() < 2) {
    throw smp::ConfigError("--heldout leaves " + std::to_string(heldout().size()) + " of the " +
                           std::to_string(tokens_.size()) + " tokens, but a loss needs at least 2");
  }
}

void Text::samples(std::uint64_t step, std::uint64_t first, int seq, std::span<std::int32_t> inputs,
                   std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(seq);
  const std::size_t choices = learnt_ - length;
  for (std::size_t i = 0; i < inputs.size() / length; ++i) {
    const std::uint64_t position = (step << 32) + first + i;
    const auto place = static_cast<std::size_t>(places_.uniform(position) * static_cast<double>(choices));
    const auto window = learnt().subspan(place, length + 1);
    std::copy_n(window.begin(), length, inputs.begin() + static_cast<std::ptrdiff_t>(i * length));
    std::copy_n(window.begin() + 1, length, targets.begin() + static_cast<std::ptrdiff_t>(i * length));
  }
}
