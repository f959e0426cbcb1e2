// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All of smp that needs neither MPI nor CUDA nor NCCL. Written by scripts/umbrella.sh.

#include <smp/comm/agreement.hpp>
#include <smp/comm/call.hpp>
#include <smp/comm/communicator.hpp>
#include <smp/comm/element.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/comm/room.hpp>
#include <smp/comm/self.hpp>
#include <smp/comm/team.hpp>
#include <smp/degrees.hpp>
#include <smp/device/copy.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/device/waiting.hpp>
#include <smp/error.hpp>
#include <smp/float16.hpp>
#include <smp/placement.hpp>
#include <smp/topology.hpp>
#include <smp/version.hpp>
