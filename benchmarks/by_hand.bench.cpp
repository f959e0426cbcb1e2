// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// What the library costs: one data-parallel training step, written with smp and by hand, with raw MPI and plain loops.
// Both use the same product of matrices: this library's, or a CBLAS with -DSMP_HAS_CBLAS=1 -lopenblas.
//
//   mpiexec -n 2 build/release/benchmarks/by_hand              compares losses, MPI calls and bytes, and the time
//   benchmarks/by_hand.sh mpiexec build/release/benchmarks/by_hand   compares instructions, with valgrind
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include <mpi.h>

#include <smp/comm/mpi_session.hpp>
#include <smp/device/gemm.hpp>
#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/relu.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

// ---- every call of MPI that moves something, counted below smp and below the code by hand
namespace {

struct Calls {
  long sends = 0, receives = 0, gathers = 0, waits = 0, bytes = 0;
  friend bool operator==(const Calls&, const Calls&) = default;
};
Calls calls;

constexpr int batch = 64, in = 256, hidden = 512, classes = 64;
constexpr double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0.01, clip = 1;

}  // namespace

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  ++calls.sends;
  calls.bytes += count;  // of MPI_BYTE
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  ++calls.receives;
  return PMPI_Irecv(data, count, type, peer, tag, comm, request);
}
int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* to, int each, MPI_Datatype to_type,
                  MPI_Comm comm) {
  ++calls.gathers;
  calls.bytes += count;
  return PMPI_Allgather(from, count, type, to, each, to_type, comm);
}
int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  ++calls.waits;
  return PMPI_Waitall(count, requests, statuses);
}

namespace {

// ---- with smp
class WithSmp {
 public:
  explicit WithSmp(const smp::comm::Mpi& world)
      : worker_(world, Topology(world.size()), 1),
        context_(worker_.context()),
        trainer_(
            context_,
            Net(smp::nn::Linear<float>(in, hidden), smp::nn::Relu<float>(), smp::nn::Linear<float>(hidden, classes)),
            smp::optim::AdamW({beta1, beta2, epsilon, decay}), {.clip = clip}),
        x_(worker_.memory(), {batch, in}),
        targets_(worker_.memory(), {batch}) {}
  void fill(auto&& f) { f(x_.data(), targets_.data()); }
  double step() {
    const double loss = smp::step(context_, trainer_, smp::nn::CrossEntropy<float>(), x_, targets_).mean();
    trainer_.step(context_, rate);
    return loss;
  }
  /// Values by name: 0.weight, 0.bias, 2.weight, 2.bias.
  std::vector<float> parameters() {
    std::vector<float> all;
    trainer_.for_each_parameter([&](std::string_view, const smp::Shape&, auto values, auto) {
      for (const auto v : values) all.push_back(static_cast<float>(v));
    });
    return all;
  }

 private:
  using Topology = smp::Topology<smp::Degrees{.rdp = smp::dynamic}>;
  using Net = smp::Sequential<smp::nn::Linear<float>, smp::nn::Relu<float>, smp::nn::Linear<float>>;
  using Worker = smp::Worker<smp::comm::Mpi, Topology>;
  Worker worker_;
  Worker::Context context_;
  smp::DataParallel<Net> trainer_;
  smp::Tensor x_;
  smp::Ids targets_;
};

// ---- by hand
void product(bool ta, bool tb, int m, int n, int k, const float* a, int lda, const float* b, int ldb, float beta,
             float* c, int ldc) {
#if SMP_HAS_CBLAS
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1, a, lda, b, ldb,
              beta, c, ldc);
#else
  const auto op = [](bool t) { return t ? smp::Transpose::yes : smp::Transpose::no; };
  smp::gemm_portable(smp::Gemm<float>{op(ta), op(tb), m, n, k, a, lda, b, ldb, c, ldc, 1, beta});
#endif
}

class ByHand {
 public:
  ByHand(MPI_Comm comm, std::vector<float> parameters) : comm_(comm), p_(std::move(parameters)) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &ranks_);
    g_.resize(p_.size()), m_.resize(p_.size()), v_.resize(p_.size());
    received_.resize(p_.size());
  }
  void fill(auto&& f) { f(x_.data(), targets_.data()); }

  double step() {
    float *w1 = p_.data(), *b1 = w1 + hidden * in, *w2 = b1 + hidden, *b2 = w2 + classes * hidden;
    float *dw1 = g_.data(), *db1 = dw1 + hidden * in, *dw2 = db1 + hidden, *db2 = dw2 + classes * hidden;
    for (int r = 0; r < batch; ++r) std::copy_n(b1, hidden, h_.data() + r * hidden);
    product(false, true, batch, hidden, in, x_.data(), in, w1, in, 1, h_.data(), hidden);
    for (float& h : h_) h = h > 0 ? h : 0;
    for (int r = 0; r < batch; ++r) std::copy_n(b2, classes, y_.data() + r * classes);
    product(false, true, batch, classes, hidden, h_.data(), hidden, w2, hidden, 1, y_.data(), classes);
    double loss = 0;
    const float share = 1.0f / static_cast<float>(batch * ranks_);
    for (int r = 0; r < batch; ++r) {
      float* y = y_.data() + r * classes;
      const float most = *std::max_element(y, y + classes);
      const float target = y[targets_[static_cast<std::size_t>(r)]];
      float sum = 0;
      for (int c = 0; c < classes; ++c) sum += y[c] = std::exp(y[c] - most);
      loss += std::log(sum) + (most - target);
      for (int c = 0; c < classes; ++c) y[c] *= share / sum;
      y[targets_[static_cast<std::size_t>(r)]] -= share;
    }
    product(true, false, classes, hidden, batch, y_.data(), classes, h_.data(), hidden, 1, dw2, hidden);
    for (int r = 0; r < batch; ++r) {
      for (int c = 0; c < classes; ++c) db2[c] += y_[static_cast<std::size_t>(r * classes + c)];
    }
    product(false, false, batch, hidden, classes, y_.data(), classes, w2, hidden, 0, dh_.data(), hidden);
    for (std::size_t i = 0; i < h_.size(); ++i) dh_[i] = h_[i] > 0 ? dh_[i] : 0;
    product(true, false, hidden, in, batch, dh_.data(), hidden, x_.data(), in, 1, dw1, in);
    for (int r = 0; r < batch; ++r) {
      for (int c = 0; c < hidden; ++c) db1[c] += dh_[static_cast<std::size_t>(r * hidden + c)];
    }
    // smp's first layer gives the gradient of its input, too
    product(false, false, batch, in, hidden, dh_.data(), hidden, w1, in, 0, dx_.data(), in);

    const double mean = loss_of_all(loss);
    sum_gradients();
    update();
    return mean;
  }
  [[nodiscard]] const std::vector<float>& parameters() const { return p_; }

 private:
  double loss_of_all(double loss) {
    if (ranks_ == 1) return loss / batch;
    double own[3] = {loss, batch, batch * batch};
    std::vector<double> all(3 * static_cast<std::size_t>(ranks_));
    MPI_Allgather(own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, comm_);
    double sum = 0, count = 0;
    for (std::size_t r = 0; r < all.size(); r += 3) sum += all[r], count += all[r + 1];
    return sum / count;
  }

  /// Every rank sums its piece in the order of the ranks, so that all bits are equal, and hands it out.
  void sum_gradients() {
    if (ranks_ == 1) return;
    const auto n = static_cast<std::size_t>(ranks_), self = static_cast<std::size_t>(rank_);
    const auto begin = [&](std::size_t r) { return g_.size() / n * r + std::min(r, g_.size() % n); };
    const std::size_t own = begin(self + 1) - begin(self);
    std::vector<MPI_Request> requests;
    const auto exchange = [&](auto send, auto receive) {
      for (std::size_t r = 0; r < n; ++r) {
        if (r == self) continue;
        const auto [to, size] = receive(r);
        MPI_Irecv(to, static_cast<int>(size * sizeof(float)), MPI_BYTE, static_cast<int>(r), 0, comm_,
                  &requests.emplace_back());
      }
      for (std::size_t r = 0; r < n; ++r) {
        if (r == self) continue;
        const auto [from, size] = send(r);
        MPI_Isend(from, static_cast<int>(size * sizeof(float)), MPI_BYTE, static_cast<int>(r), 0, comm_,
                  &requests.emplace_back());
      }
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
      requests.clear();
    };
    using Piece = std::pair<float*, std::size_t>;
    exchange([&](std::size_t r) { return Piece(g_.data() + begin(r), begin(r + 1) - begin(r)); },
             [&](std::size_t r) { return Piece(received_.data() + own * (r < self ? r : r - 1), own); });
    float* sum = g_.data() + begin(self);
    for (std::size_t i = 0; i < own; ++i) {
      float s = self == 0 ? sum[i] : received_[i];
      for (std::size_t r = 1; r < n; ++r) s += r == self ? sum[i] : received_[own * (r < self ? r : r - 1) + i];
      sum[i] = s;
    }
    exchange([&](std::size_t) { return Piece(sum, own); },
             [&](std::size_t r) { return Piece(g_.data() + begin(r), begin(r + 1) - begin(r)); });
  }

  void update() {
    double squares = 0;
    for (const float g : g_) squares += static_cast<double>(g) * static_cast<double>(g);
    const auto factor = static_cast<float>(std::min(1.0, clip / (std::sqrt(squares) + 1e-6)));
    ++steps_;
    const auto corrected = static_cast<float>(rate / (1 - std::pow(beta1, steps_)));
    const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps_)));
    const auto range = [&](std::size_t first, std::size_t last, double weight_decay) {
      const auto keep = static_cast<float>(1 - rate * weight_decay);
      for (std::size_t i = first; i < last; ++i) {
        const float g = factor * g_[i];
        m_[i] = static_cast<float>(beta1) * m_[i] + static_cast<float>(1 - beta1) * g;
        v_[i] = static_cast<float>(beta2) * v_[i] + static_cast<float>(1 - beta2) * (g * g);
        p_[i] = keep * p_[i] - corrected * m_[i] / (std::sqrt(v_[i]) * root + static_cast<float>(epsilon));
        g_[i] = 0;
      }
    };
    constexpr std::size_t first = hidden * in, second = first + hidden, third = second + classes * hidden;
    range(0, first, decay), range(first, second, 0), range(second, third, decay), range(third, p_.size(), 0);
  }

  MPI_Comm comm_;
  int rank_ = 0, ranks_ = 1, steps_ = 0;
  std::vector<float> p_, g_, m_, v_, received_;
  std::vector<float> x_ = std::vector<float>(batch * in), h_ = std::vector<float>(batch * hidden),
                     y_ = std::vector<float>(batch * classes), dh_ = h_, dx_ = x_;
  std::vector<std::int32_t> targets_ = std::vector<std::int32_t>(batch);
};

/// Trains for so many steps and returns the last loss.
template <class Side>
double run(Side& side, int rank, int steps) {
  double loss = 0;
  for (int s = 0; s < steps; ++s) {
    side.fill([&](float* x, std::int32_t* targets) {
      for (int i = 0; i < batch * in; ++i) x[i] = static_cast<float>(((rank * 31 + s * 7 + i) * 97) % 199) / 100.0f - 1;
      for (int i = 0; i < batch; ++i) targets[i] = (rank + s + i) % classes;
    });
    loss = side.step();
  }
  return loss;
}

/// What one side does in 50 steps.
struct Measured {
  double loss = 0, seconds = 0;
  Calls of;
};
template <class Side>
Measured measure(Side& side, int rank) {
  run(side, rank, 3);
  calls = {};
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  const double loss = run(side, rank, 50);
  return {loss, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), calls};
}

}  // namespace

int main(int argc, char** argv) {
  // One segment: a hand would not cut the messages, which pays for large ones only.
  smp::comm::MpiSession session(argc, argv, {.segment = std::size_t{1} << 20});
  const smp::comm::Mpi world = session.world();
  WithSmp ours(world);
  ByHand theirs(MPI_COMM_WORLD, ours.parameters());
  if (argc == 3) {  // for by_hand.sh: "smp" or "hand", and steps
    const bool smp_side = std::string_view(argv[1]) == "smp";
    const int steps = std::atoi(argv[2]);
    std::printf("%.6f\n", smp_side ? run(ours, world.rank(), steps) : run(theirs, world.rank(), steps));
    return 0;
  }
  const Measured smp = measure(ours, world.rank()), hand = measure(theirs, world.rank());
  double apart = 0;
  const std::vector<float> a = ours.parameters(), b = theirs.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) apart += std::pow(static_cast<double>(a[i] - b[i]), 2);
  apart =
      std::sqrt(apart / static_cast<double>(a.size()));  // single elements differ by more: Adam divides noise by noise
  std::printf(
      "rank %d: loss %.6f by smp, %.6f by hand; parameters %.1e apart (rms); %.3f ms and %.3f ms a step\n"
      "  sends %ld and %ld, receives %ld and %ld, gathers %ld and %ld, waits %ld and %ld, bytes %ld and %ld\n",
      world.rank(), smp.loss, hand.loss, apart, smp.seconds * 20, hand.seconds * 20, smp.of.sends, hand.of.sends,
      smp.of.receives, hand.of.receives, smp.of.gathers, hand.of.gathers, smp.of.waits, hand.of.waits, smp.of.bytes,
      hand.of.bytes);
  const bool equal = smp.of == hand.of && std::abs(smp.loss - hand.loss) < 1e-4 && apart < 1e-4;
  if (!equal) std::fprintf(stderr, "rank %d: the two sides differ\n", world.rank());
  return equal ? 0 : 1;
}
