// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a communicator knows of the elements it moves: a type's identity, its size, and the type its sums are kept in.
/// One row of the table per type; a new type is one line.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <smp/float16.hpp>

namespace smp::comm {

/// The element types that can be reduced, and `opaque` for all others, which can only be moved.
enum class Element : unsigned char { opaque, f64, f32, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64 };

/// The name of an element type in messages.
[[nodiscard]] constexpr const char* name(Element e) noexcept {
  constexpr const char* names[] = {"bytes", "double", "float", "fp16",   "bf16",   "int8",  "int16",
                                   "int32", "int64",  "uint8", "uint16", "uint32", "uint64"};
  return names[static_cast<std::size_t>(e)];
}

/// Identity and accumulation type of `T`. Anything trivially copyable may be moved; what can be reduced is listed
/// below.
template <class T>
struct ElementTraits {
  static_assert(std::is_trivially_copyable_v<T>,
                "smp: only trivially copyable elements can be communicated in place; for other types use "
                "send_object, recv_object, broadcast_object or all_gather_object of <smp/comm/objects.hpp>");
  static constexpr Element element = Element::opaque;  ///< can only be moved
};

/// A row of the table: element identity `E`, sums and averages kept in `Acc` and rounded once.
template <Element E, class Acc>
struct ReducibleElement {
  static constexpr Element element = E;  ///< identity of the type
  using Accumulator = Acc;               ///< what sums are kept in
};

// clang-format off
template <> struct ElementTraits<double>        : ReducibleElement<Element::f64, double> {};
template <> struct ElementTraits<float>         : ReducibleElement<Element::f32, float> {};
template <> struct ElementTraits<Float16>       : ReducibleElement<Element::f16, float> {};
template <> struct ElementTraits<BFloat16>      : ReducibleElement<Element::bf16, float> {};
template <> struct ElementTraits<std::int8_t>   : ReducibleElement<Element::i8, std::int8_t> {};
template <> struct ElementTraits<std::int16_t>  : ReducibleElement<Element::i16, std::int16_t> {};
template <> struct ElementTraits<std::int32_t>  : ReducibleElement<Element::i32, std::int32_t> {};
template <> struct ElementTraits<std::int64_t>  : ReducibleElement<Element::i64, std::int64_t> {};
template <> struct ElementTraits<std::uint8_t>  : ReducibleElement<Element::u8, std::uint8_t> {};
template <> struct ElementTraits<std::uint16_t> : ReducibleElement<Element::u16, std::uint16_t> {};
template <> struct ElementTraits<std::uint32_t> : ReducibleElement<Element::u32, std::uint32_t> {};
template <> struct ElementTraits<std::uint64_t> : ReducibleElement<Element::u64, std::uint64_t> {};
// clang-format on

/// `T` has a row in the table of reducible elements.
template <class T>
concept Reducible = requires { typename ElementTraits<T>::Accumulator; };

}  // namespace smp::comm
