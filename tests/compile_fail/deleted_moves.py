# SPDX-License-Identifier: Apache-2.0
"""Every move between distributions in the library's cut modules is needed: deletes each in turn from a copy of its
header, and compiles models that use all of them. Each must fail with a sentence of ours in the first error.

    python3 deleted_moves.py INCLUDE COMPILER [FLAGS...]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

INCLUDE = pathlib.Path(sys.argv[1])
COMPILE = sys.argv[2:]
HEADERS = ("smp/parallel/tensor_parallel.hpp", "smp/nn/distributed_layer_norm.hpp",
           "smp/nn/vocabulary_cross_entropy.hpp")
LEAST = 8

MODELS = r"""
#include <smp/comm/groups.hpp>
#include <smp/comm/self.hpp>
#include <smp/context.hpp>
#include <smp/nn/distributed_layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/vocabulary_cross_entropy.hpp>

using smp::Split, smp::Invariant;
using Rows = smp::Shard<smp::Dim::sequence>;
using Context = smp::Context<smp::HostStream, smp::comm::Groups<smp::comm::Self>>;

template <class M>
void use(Context& ctx, M& m, const typename M::Input& x, const smp::GradOf<typename M::Output>& dy) {
  typename M::Saved saved{};
  (void)m.forward(ctx, x, saved);
  (void)m.backward(ctx, dy, saved);
  (void)smp::backward_input(m, ctx, dy, saved);
}
template <class M, Split S, class At>
void use_cut(Context& ctx) {
  using Cut = smp::TensorParallel<M, S, At, smp::dynamic>;
  use<Cut>(ctx, *static_cast<Cut*>(nullptr), {}, {});
}
void all(Context& ctx) {
  use_cut<smp::nn::Mlp<>, Split::usual, Invariant>(ctx);
  use_cut<smp::nn::Mlp<>, Split::usual, Rows>(ctx);
  use_cut<smp::nn::Linear<>, Split::columns, Invariant>(ctx);
  use<smp::nn::DistributedLayerNorm<>>(ctx, *static_cast<smp::nn::DistributedLayerNorm<>*>(nullptr), {}, {});
  use<smp::nn::VocabularyCrossEntropy<>>(ctx, *static_cast<smp::nn::VocabularyCrossEntropy<>*>(nullptr), {}, {});
}
"""


def moves(text):
    """Where each call of a move begins and ends, and its value: its second argument."""
    for call in re.finditer(r"(?<![\w<])(?:moved_beside|moved|move_to)<", text):
        if text.rfind("\n", 0, call.start()) < text.rfind("//", 0, call.start()):
            continue  # in a comment
        at, depth = call.end(), 1
        while depth > 0:
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
        if text[at] != "(":
            continue
        begin = at = at + 1
        depth, arguments = 1, []
        while depth > 0:
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(text[at], 0)
            if depth == 0 or (depth == 1 and text[at] == ","):
                arguments.append(text[begin:at].strip())
                begin = at + 1
            at += 1
        if arguments[0] == "ctx":
            yield call.start(), at, arguments[1]


def compiled(folder):
    """Exit code and errors of the compiler, with the headers in `folder` before the others."""
    source = folder / "models.cpp"
    source.write_text(MODELS)
    done = subprocess.run([*COMPILE, f"-I{folder}", f"-I{INCLUDE}", "-fsyntax-only", "-fdiagnostics-color=never", source],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


bad = deleted = 0
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    code, errors = compiled(folder)
    if code != 0:
        sys.exit("the models do not compile as they are:\n" + errors)
    for header in HEADERS:
        text = (INCLUDE / header).read_text()
        copy = folder / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        for first, last, value in moves(text):
            deleted += 1
            copy.write_text(f"{text[:first]}({value}){text[last:]}")
            code, errors = compiled(folder)
            error = next((line for line in errors.splitlines() if re.search(r"^[^ ].*: (fatal )?error: ", line)), "")
            sentence = re.search(r'smp(::\w+)?: [^"]*', error)
            line = text.count("\n", 0, first) + 1
            print(f"{header}:{line}: without {text[first:last].split('(')[0]}: {sentence[0] if sentence else error or 'compiles'}")
            bad += code == 0 or not sentence
        copy.unlink()
print(f"{deleted} moves deleted, {bad} of them without a sentence")
sys.exit(bad > 0 or deleted < LEAST)
