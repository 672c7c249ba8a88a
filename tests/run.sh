#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test of SwiftCache on a machine that needs to have nothing but Debian 12: installs, builds and fetches what
# is missing. Says what the machine did not allow. The last line is `N passed, N failed`.
#   tests/run.sh           everything, bounded for two cores
#   tests/run.sh --long    and repetitions, soaks, minutes of fuzzing
set -uo pipefail
cd "$(dirname "$0")/.."

long=false
case "${1:-}" in
  '') ;;
  --long) long=true ;;
  *) echo "tests/run.sh: unknown argument '$1'; wanted: nothing, or --long" >&2; exit 2 ;;
esac

results=$PWD/build/test-results
rm -rf "$results"
mkdir -p "$results"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache"
export SWIFTCACHE_SHARED="${SWIFTCACHE_SHARED:-$PWD/../shared}"
export SWIFTCACHE_TEST_VOCABS="${SWIFTCACHE_TEST_VOCABS:-$cache/test-vocabs}"
# A cache that is empty anyway does without preprocessing, a tenth of all compiling; others' checkouts could not share it.
[ "${CI:-}" = true ] && export NINJA_STATUS='[%f/%t %es] ' CCACHE_DEPEND=1
venv=$cache/test-venv
started=$SECONDS

# stage NAME COMMAND...: runs it with its output in a log of its own and records whether it passed. 77: it cannot run
# here, and its last line says why.
stage() {
  local name=$1 begin=$SECONDS; shift
  printf '%-58s' "$name"
  if "$@" >"$results/$name.log" 2>&1; then
    echo "ok    $((SECONDS - begin)) s"
    echo pass >"$results/$name.stage"
  elif [ $? -eq 77 ]; then
    tail -n 1 "$results/$name.log"
    echo skip >"$results/$name.stage"
    return 77
  else
    echo "FAIL  $((SECONDS - begin)) s"
    grep -nE -A8 'FAILED|error:|ERROR: |Error|WARNING: ThreadSanitizer' "$results/$name.log" | tail -60
    echo "--- end of its log:"; tail -25 "$results/$name.log"
    echo fail >"$results/$name.stage"
    return 1
  fi
}
skip() {  # skip NAME WHY
  printf '%-58sskipped: %s\n' "$1" "$2"
  echo "$2" >"$results/$1.log"
  echo skip >"$results/$1.stage"
}
finish() {
  python3 tests/tally.py "$results"
  local code=$?
  exit $code
}
# built PRESET TARGET...: a warning is an error. The clang presets have the analysis of locks in them.
built() {
  cmake --preset "$1" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON && cmake --build --preset "$1" --target "${@:2}"
}
# Compiles what comes later with what tests leave of the processors: they wait, for one another and for time to pass.
# Where the kernel shares time by sessions (autogroup) a session has as much as any other, however idle its processes.
fuzz_build=(fuzz swiftcache-{broker,engine,gateway} asan_tests fuzzers)
tsan_build=(tsan tsan_tests)
cuda_build=(cuda swiftcache-engine swiftcache-gpu-bench gpu_tests)
ahead=
begin_ahead() {  # begin_ahead 'PRESET TARGET...' ...
  export -f built
  setsid chrt --idle 0 bash -c "{ echo 19 >/proc/self/autogroup; } 2>/dev/null; $(printf 'built %s && ' "$@") true" \
    >>"$results/ahead.log" 2>&1 &
  ahead=$!
  trap end_ahead EXIT
}
end_ahead() {
  trap - EXIT
  [ -n "$ahead" ] || return
  kill -TERM -- "-$ahead" 2>/dev/null
  wait "$ahead" 2>/dev/null
  for _ in {1..300}; do  # ninja still removes what is half made, where the next one is about to begin
    kill -0 -- "-$ahead" 2>/dev/null || break
    sleep 0.1
  done
  ahead=
}
# unit PRESET CTEST_ARGS...: GoogleTest leaves one JSON a binary.
unit() {
  local preset=$1; shift
  GTEST_OUTPUT="json:$results/$preset-gtest/" ctest --preset "$preset" -j2 "$@"
}
# e2e NAME PYTEST_ARGS...: what the processes wrote stays with the results. In the foreground Ctrl-C reaches pytest, and pytest,
# which ends its servers when it is interrupted, is interrupted when its time is over.
e2e() {
  timeout --foreground -s INT -k 60 "$($long && echo 6h || echo 2400)" "$venv/bin/python" -m pytest -q --basetemp "$results/$1" --junit-xml "$results/$1.junit.xml" "${@:2}"
}
python_env() {
  local ready; ready=$venv/.ready-$(sha256sum tests/requirements.txt | cut -c1-16)
  [ -e "$ready" ] && return 0
  rm -rf "$venv"
  python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt && touch "$ready"
}

stage dependencies deploy/install-deps.sh --tests || finish
stage model deploy/fetch-model.sh
stage vocabularies tests/fetch-vocabs.sh
stage python-clients python_env
export SWIFTCACHE_TEST_MODEL="$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
export PATH="$venv/bin:$PATH"  # python3 with jinja2, for the reference renderings
[ -d "$SWIFTCACHE_SHARED/golden" ] || skip "shared reference data" "$SWIFTCACHE_SHARED is absent; the small cases in tests/data are used alone"

stage build-release built release binaries unit_tests || finish
begin_ahead "${fuzz_build[*]}" "${tsan_build[*]}"
# First and alone: the fixed ports of these two lie where the system takes local ports for the connections of other tests,
# and keeps them for a minute.
stage end-to-end-quickstart e2e e2e-quickstart tests/e2e/quickstart_test.py tests/e2e/readme_test.py
stage unit-release unit release
stage end-to-end e2e e2e tests/e2e --ignore tests/e2e/quickstart_test.py --ignore tests/e2e/readme_test.py --bin build/release/bin $($long && echo --long)
stage rules-and-alerts tests/observability/check.sh
stage package tests/e2e/package.sh "$SWIFTCACHE_TEST_MODEL" && tail -n 1 "$results/package.log"
stage units tests/e2e/units.sh "$SWIFTCACHE_TEST_MODEL" && tail -n 1 "$results/units.log"
stage containers tests/e2e/compose.sh build/release/bin "$SWIFTCACHE_TEST_MODEL" $($long && echo --whole) && tail -n 1 "$results/containers.log"
end_ahead
# The fuzz preset is AddressSanitizer and UBSan with libFuzzer's coverage: one build serves tests and fuzzers.
if stage build-fuzz built "${fuzz_build[@]}"; then
  begin_ahead "${tsan_build[*]}"
  stage unit-fuzz unit fuzz -L asan
  stage end-to-end-asan e2e e2e-asan tests/e2e/load_test.py --bin build/fuzz/bin --small
  for fuzzer in build/fuzz/tests/fuzz_*; do
    name=$(basename "$fuzzer")
    stage "$name" tests/fuzz/run-one.sh "$fuzzer" "$($long && echo 300 || echo 4)"
  done
  end_ahead
fi
# The CUDA half is compiled wherever nvcc is. On a machine without a GPU nothing of it runs, and it says so.
nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc)
if stage build-tsan built "${tsan_build[@]}"; then
  [ -n "$nvcc" ] && begin_ahead "${cuda_build[*]}"
  stage unit-tsan unit tsan -L tsan
fi
stage build-counted built release swiftcache-counted-steps swiftcache-bookkeeping-bench &&
  stage instructions tests/bench/instructions.py --bin build/release/bin
stage arm tests/arm.sh
if [ -n "$nvcc" ]; then
  end_ahead
  if stage build-cuda built "${cuda_build[@]}"; then
    stage cuda-kernels-for-each-gpu tests/gpu/check_fatbin.py build/cuda/bin/swiftcache-engine
    stage cuda-without-a-gpu tests/gpu/without_gpu.sh build/cuda "$SWIFTCACHE_TEST_MODEL"
    nvidia-smi -L >/dev/null 2>&1 || skip "GPU tests" "no GPU here: tests/gpu/run.sh runs them where there is one"
  fi
else
  skip build-cuda "no nvcc here"
fi
for bench in leases donors; do  # the whole ones are too long, and want a machine that does nothing else
  stage "bench-of-$bench-guard" "$venv/bin/python" tests/bench/$bench.py guard --bin build/release/bin --model "$SWIFTCACHE_TEST_MODEL"
done
if $long; then
  stage simulation-of-other-seeds env SIM_FIRST_SEED=10001 SIM_SEEDS=100000 build/release/tests/sim_test --gtest_filter='*NoSeed*'
  stage soak-of-other-seeds env SOAK_FIRST_SEED=1001 SOAK_SEEDS=20000 build/release/tests/engine_exec_sharing_soak_test --gtest_filter='*NoSeed*'
  leases_bench() {
    local code=0 what
    for what in 'leases.py longest --rounds 1' 'donors.py reclaim --rounds 20' 'leases.py stall --rounds 5'; do
      # shellcheck disable=SC2086  # a name and its flags
      "$venv/bin/python" tests/bench/$what --bin build/release/bin --model "$SWIFTCACHE_TEST_MODEL" || code=1
    done
    return $code
  }
  stage bench-of-leases leases_bench
  stage build-dev-file-by-file built dev binaries unit_tests
  stage build-benches built release benches
  stage planted-bugs tests/mutants/run.py --planted
fi
stage changed-files tests/check-changed.sh $($long && echo --all) && tail -n 1 "$results/changed-files.log"
stage structure tests/check-structure.sh
stage documents tests/check-docs.py
stage flags-table tests/flags-table.py --bin build/release/bin
stage sizes tests/report-sizes.py && head -n 2 "$results/sizes.log"
stage format tests/check-format.sh
for flag in avx512_bf16 amx_bf16; do
  if ! grep -q "$flag" /proc/cpuinfo; then skip "kernels of $flag" "this processor lacks it"; fi
done
echo "took $((SECONDS - started)) s"
finish
