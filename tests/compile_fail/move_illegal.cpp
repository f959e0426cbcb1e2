// expect-error: smp::Move: there is no such move: a whole value does not become summands
#include <smp/comm/groups.hpp>
#include <smp/comm/self.hpp>
#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/parallel/move.hpp>

using Ctx = smp::Context<smp::HostStream, smp::comm::Groups<smp::comm::Self>>;
auto f(Ctx& ctx, smp::Dist<smp::Tensor, smp::Invariant> x) { return smp::move_to<smp::Partial>(ctx, x); }
