// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// An MPI program of its own kind, the heat equation on a ring of ranks, hands its communicator to smp and goes on using
// it: its halo messages are under way while smp reduces and gathers. The program begins and ends MPI itself.
//   mpirun -n 4 build/release/examples/embed_in_mpi_code
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include <mpi.h>

#include <smp/comm/groups.hpp>
#include <smp/comm/mpi.hpp>
#include <smp/topology.hpp>

namespace {

/// The existing code: cells of a ring, one step of diffusion, a halo cell on each side.
struct Heat {
  MPI_Comm comm;
  std::vector<double> cells = std::vector<double>(1002, 0.0);
  MPI_Request halo[4]{};

  void begin_halo_exchange(int rank, int size) {
    const int left = (rank + size - 1) % size;
    const int right = (rank + 1) % size;
    const std::size_t last = cells.size() - 1;
    MPI_Irecv(&cells[0], 1, MPI_DOUBLE, left, 0, comm, &halo[0]);
    MPI_Irecv(&cells[last], 1, MPI_DOUBLE, right, 1, comm, &halo[1]);
    MPI_Isend(&cells[last - 1], 1, MPI_DOUBLE, right, 0, comm, &halo[2]);
    MPI_Isend(&cells[1], 1, MPI_DOUBLE, left, 1, comm, &halo[3]);
  }

  void step() {
    MPI_Waitall(4, halo, MPI_STATUSES_IGNORE);
    std::vector<double> next = cells;
    for (std::size_t i = 1; i + 1 < cells.size(); ++i) {
      next[i] = cells[i] + 0.25 * (cells[i - 1] - 2 * cells[i] + cells[i + 1]);
    }
    cells.swap(next);
  }

  [[nodiscard]] double heat() const { return std::accumulate(cells.begin() + 1, cells.end() - 1, 0.0); }
};

// [readme-begin]
/// The new code: a surrogate model is trained beside the simulation, on the same ranks.
class Surrogate {
 public:
  explicit Surrogate(MPI_Comm host)
      : world_(host),  // a duplicate: our messages never meet the host's
        topology_(smp::degrees_for(world_.size(), {.tp = world_.size() % 2 == 0 ? 2 : 1, .rdp = smp::dynamic})),
        groups_(world_, topology_) {}

  /// Averages a gradient over the ranks that hold the same parameters.
  void average(std::vector<float>& gradient) {
    groups_[smp::Group::rdp].all_reduce(stream_, gradient, gradient, smp::average, smp::Purpose::gradient);
  }

  /// Joins the slices that the tensor-parallel ranks have of a parameter.
  std::vector<float> whole(const std::vector<float>& slice) {
    auto& tp = groups_[smp::Group::tp];
    std::vector<float> joined(slice.size() * static_cast<std::size_t>(tp.size()));
    tp.all_gather(stream_, slice, joined, smp::Purpose::parameter);
    return joined;
  }

 private:
  smp::comm::Mpi world_;
  smp::DynamicTopology topology_;
  smp::comm::Groups<smp::comm::Mpi> groups_;
  smp::HostStream stream_;
};
// [readme-end]

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  Heat heat{MPI_COMM_WORLD};
  heat.cells[500] = rank == 0 ? 1000.0 : 0.0;
  std::optional<Surrogate> surrogate(MPI_COMM_WORLD);
  const int tp = size % 2 == 0 ? 2 : 1;
  const double mean_rank = (size - tp) / 2.0 + rank % tp;  // of the ranks with this one's tensor-parallel rank

  bool right = true;
  for (int i = 0; i < 200; ++i) {
    heat.begin_halo_exchange(rank, size);  // under way while the surrogate communicates
    std::vector<float> gradient(5000, static_cast<float>(rank));
    surrogate->average(gradient);
    const std::vector<float> joined = surrogate->whole(gradient);
    heat.step();
    right = right && std::abs(static_cast<double>(gradient.back()) - mean_rank) < 1e-6 &&
            joined.size() == gradient.size() * static_cast<std::size_t>(tp);
  }
  double total = heat.heat();
  MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  right = right && std::abs(total - 1000.0) < 1e-9;
  int all_right = right ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &all_right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("embed_in_mpi_code: %s, heat %.6f on %d ranks\n", all_right == 1 ? "OK" : "WRONG", total, size);
  }

  MPI_Finalize();
  surrogate.reset();  // may outlive MPI
  return all_right == 1 ? 0 : 1;
}
