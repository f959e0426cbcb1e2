// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: specialise smp::comm::ObjectTraits for this type, with pack and unpack
#include <memory>

#include <smp/comm/objects.hpp>
#include <smp/comm/self.hpp>

auto share(smp::comm::Self& world, const std::shared_ptr<int>& p) { return smp::comm::broadcast_object(world, p, 0); }
