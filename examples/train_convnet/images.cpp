// SPDX-License-Identifier: Apache-2.0
#include "images.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <zlib.h>

#include <smp/error.hpp>

namespace {

/// The bytes of an IDX file: a magic number that says how many sizes follow, the sizes, then one byte a value.
class IdxFile {
 public:
  explicit IdxFile(const std::string& name) : name_(name), file_(gzopen(name.c_str(), "rb"), &gzclose) {
    if (!file_) throw smp::ConfigError("'" + name + "' cannot be opened: " + std::strerror(errno));
  }
  /// A number of four bytes, the highest first.
  std::uint32_t number() {
    std::uint8_t b[4];
    bytes(b);
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  }
  void expect(std::uint32_t value) {
    if (number() != value) throw smp::ConfigError("'" + name_ + "' is no file of 28 x 28 images, or of their labels");
  }
  void bytes(std::span<std::uint8_t> to) {
    if (gzfread(to.data(), 1, to.size(), file_.get()) != to.size()) {
      throw smp::ConfigError("'" + name_ + "' is damaged or too short");
    }
  }

 private:
  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

Images Images::read(const std::string& folder, const std::string& name, std::size_t limit) {
  IdxFile images(folder + "/" + name + "-images-idx3-ubyte.gz");
  IdxFile labels(folder + "/" + name + "-labels-idx1-ubyte.gz");
  images.expect(2051);
  labels.expect(2049);
  const std::uint32_t count = images.number();
  labels.expect(count);
  images.expect(28);
  images.expect(28);

  Images result;
  const std::size_t wanted = limit == 0 ? count : std::min<std::size_t>(limit, count);
  result.grey.resize(wanted * pixels);
  result.labels.resize(wanted);
  images.bytes(result.grey);
  labels.bytes(result.labels);
  if (std::any_of(result.labels.begin(), result.labels.end(), [](int label) { return label >= classes; })) {
    throw smp::ConfigError("'" + folder + "/" + name + "-labels-idx1-ubyte.gz' has labels that are not 0 to 9");
  }
  return result;
}
