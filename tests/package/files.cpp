// SPDX-License-Identifier: Apache-2.0
// Where the smp it got includes files, a program outside of the repository can use that.
#include <smp/io/sha256.hpp>

std::string digest_of_nothing() { return smp::io::Sha256().hex(); }
