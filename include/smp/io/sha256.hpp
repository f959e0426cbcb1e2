// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// SHA-256 of what is written piece by piece, by OpenSSL.

#include <array>
#include <cstddef>
#include <memory>
#include <openssl/evp.h>
#include <span>
#include <string>

#include <smp/error.hpp>

namespace smp::io {

/// The SHA-256 digest (FIPS 180-4) of all bytes given to `update`.
class Sha256 {
 public:
  /// @throws Error if OpenSSL refuses
  Sha256() { check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }

  /// Appends `bytes`.
  void update(std::span<const std::byte> bytes) {
    check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }

  /// The digest as 64 lower-case hexadecimal digits. Ends the computation.
  [[nodiscard]] std::string hex() {
    std::array<unsigned char, 32> digest{};
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    std::string text;
    for (const unsigned char byte : digest) {
      text += "0123456789abcdef"[byte / 16];
      text += "0123456789abcdef"[byte % 16];
    }
    return text;
  }

 private:
  static void check(bool ok) {
    if (!ok) throw Error("OpenSSL could not compute a SHA-256 digest");
  }
  struct Free {
    void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
};

}  // namespace smp::io
