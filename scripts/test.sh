#!/usr/bin/env bash
# Sets up a fresh Debian 12 and builds and tests everything there: ranks as threads, Open MPI, MPICH, the sanitizers, the
# second compiler, and what is promised of the sources and of the installed package. The last line is "N passed, N failed".
#   scripts/test.sh           what every change has to pass
#   scripts/test.sh --full    the same with long sweeps
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.bash

packages=(
  g++ clang-16 libclang-rt-16-dev cmake ninja-build ccache pkg-config
  libopenmpi-dev openmpi-bin mpich libmpich-dev
  doctest-dev libcli11-dev libbenchmark-dev libdnnl-dev libopenblas-dev zlib1g-dev
  nlohmann-json3-dev libssl-dev libeigen3-dev python3
  doxygen clang-format-16 clang-tidy-16
)
presets=(release mpich asan tsan)
configure_options=()

case ${1:-} in
  "") ;;
  --full)
    export SMP_TEST_FULL=1
    packages+=(dataset-fashion-mnist)
    configure_options+=(-DSMP_TEST_TIMEOUT=7200 "-DSMP_TEST_RANKS=1;2;3;4;8" -DSMP_TEST_WITHOUT_CASES=)
    ;;
  *)
    echo "usage: scripts/test.sh [--full]" >&2
    exit 2
    ;;
esac

install_missing "${packages[@]}"

# What was compiled for another clone of the repository counts, debug information included.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
export CMAKE_BUILD_PARALLEL_LEVEL

passed=0 failed=0 summary=()

# attribute NAME FILE: the number of the JUnit report's root element
attribute() { grep -om1 "\b$1=\"[0-9]*\"" "$2" | tr -dc 0-9; }

# run_preset NAME: configure, build, test. Whatever fails is counted, and the next step does what is still possible.
run_preset() {
  local preset=$1 report=$PWD/build/$1/junit.xml start=$SECONDS built broken=0 tests=0 failures=0 skipped=0
  printf '\n== %s\n' "$preset"
  mkdir -p "build/$preset"
  rm -f "$report"
  if ! cmake --preset "$preset" "${configure_options[@]}" >"build/$preset/configure.log" 2>&1; then
    cat "build/$preset/configure.log"
    failed=$((failed + 1))
    summary+=("$preset could not be configured")
    return
  fi
  cmake --build --preset "$preset" -- -k 0 --quiet || broken=1
  built=$SECONDS
  ctest --preset "$preset" -j "$(nproc)" --output-junit "$report" || true
  if [[ -s $report ]]; then
    tests=$(attribute tests "$report")
    # ctest also calls skipped what it could not run, for want of the executable.
    skipped=$(grep -c '<skipped message="SKIP_RETURN_CODE' "$report" || true)
    failures=$(($(attribute failures "$report") + $(attribute skipped "$report") - skipped))
  fi
  ((tests > 0)) || broken=$((broken + 1))
  passed=$((passed + tests - failures - skipped))
  failed=$((failed + failures + broken))
  summary+=("$preset: $tests tests, $((failures + broken)) bad, $skipped skipped; build $((built - start)) s, tests $((SECONDS - built)) s")
}

for preset in "${presets[@]}"; do
  run_preset "$preset"
done

printf '\n== summary, %s s\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
grep -h 's of user CPU time' build/release/Testing/Temporary/LastTest.log || true
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
