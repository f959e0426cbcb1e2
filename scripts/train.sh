#!/usr/bin/env bash
# Trains a small language model on a fresh Debian 12: installs what is missing, builds examples/train_gpt, and lets it learn
# the King James Bible, or a text of yours, on every core. Ends with the loss on a tenth of the text that it has not seen,
# a sample of what it writes, and the loss curve as a picture, in less than ten minutes on 2 cores.
#   scripts/train.sh [FILE]
set -euo pipefail
(($# <= 1)) && [[ ${1:-} != -* ]] || { echo "usage: scripts/train.sh [FILE]" >&2; exit 2; }
text=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
. scripts/packages.bash
packages=(g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libssl-dev libdnnl-dev libopenblas-dev gnuplot-nox jq)
[[ -n $text ]] || packages+=(bible-kjv bible-kjv-text)
install_missing "${packages[@]}"

echo "== building"
build=build/train
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMP_BUILD_TESTS=OFF -DSMP_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build $build --target example_train_gpt -- --quiet

if [[ -z $text ]]; then
  text=$build/kjv.txt
  bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >$text # a verse a line, without "Ge1:1 "
fi

echo "== training on $text"
$build/examples/train_gpt --data "$text" --tokens chars --heldout 0.1 --eval-every 500 \
  --layers 4 --heads 4 --hidden 128 --seq 128 --batch 16 --steps 3000 \
  --lr 1e-3 --lr-schedule cosine --min-lr 1e-4 --warmup 100 --weight-decay 0.1 --clip 1 \
  --ranks "$(($(nproc) > 2 ? $(nproc) : 2))" --log $build/log.jsonl --save $build/weights.safetensors

jq -r 'select(.step) | [.step, .loss] | @tsv' $build/log.jsonl >$build/learnt.tsv
jq -r 'select(.heldout_loss) | [.step, .heldout_loss] | @tsv' $build/log.jsonl >$build/heldout.tsv
gnuplot <<PLOT
set terminal svg size 800, 480 background "white"
set output "$build/loss.svg"
set xlabel "step"
set ylabel "loss (nats a character)"
set grid
plot "$build/learnt.tsv" with lines linecolor "#9ecae1" title "learnt", \
     "$build/heldout.tsv" with linespoints linecolor "#d62728" pointtype 7 title "held out"
PLOT
echo "== loss curve: $build/loss.svg, weights: $build/weights.safetensors, log: $build/log.jsonl"
