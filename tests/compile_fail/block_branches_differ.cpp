// expect-error: smp::nn::TransformerBlock: the MLP must take and return what the attention does, distributed in the
// same
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>

using Rows = smp::Shard<smp::Dim::sequence>;
using Attention = smp::TensorParallel<smp::nn::Attention<>, smp::Split::usual, Rows>;
using Mlp = smp::TensorParallel<smp::nn::Mlp<>, smp::Split::usual, smp::Invariant>;

using Block = smp::nn::TransformerBlock<float, smp::nn::KeyMask::none, Attention, Mlp>;
static_assert(sizeof(Block) > 0);
