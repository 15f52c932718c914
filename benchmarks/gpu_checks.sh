#!/usr/bin/env bash
# What a CUDA GPU adds to the tests, and how fast decoding is there beside its peers, in at most five minutes:
#
#     bash benchmarks/gpu_checks.sh            on a machine with a GPU, in a checkout with specviz and its tests' needs
#     bash benchmarks/gpu_checks.sh cpu        a rehearsal without one
#
# The bundled pair runs there in half precision, through CUDA graphs, on two kinds of devices at once, and spread by
# accelerate; then the graphs on every family, and the exact law, the caches' invariant and ragged batches over every
# family and drafter, in float64. Last, benchmarks/decode.py with few prompts, in half precision: a first impression.
#
# No GPU was at hand when this was written. It was rehearsed with "cpu", with a stand-in for a device that refuses
# tensors of the CPU as CUDA does, and with one for graphs that forgets all of Python as they do; a first run on a GPU
# may still find what only a GPU can show.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${1:-cuda}
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# The most telling first: if the time is too short, what is missing is the rest.
timeout --signal=INT --kill-after=5 185 "$python" -m pytest --device "$device" -q --durations=5 \
    tests/test_cuda.py tests/test_graphs.py tests/test_seq2seq.py tests/test_drafters.py tests/test_cache.py \
    tests/test_families.py tests/test_exact_law.py
tests=$?
[ $tests -ne 2 ] && [ $tests -ne 124 ] || echo "TESTS NOT FINISHED in time, or interrupted: see how far they came."

dtype=$([ "$device" = cpu ] && echo float32 || echo float16)
timeout --signal=INT --kill-after=5 100 "$python" benchmarks/decode.py --device "$device" --dtype "$dtype" \
    --prompts 3 --runs 1
speed=$?
[ $speed -eq 0 ] || echo "SPEED NOT MEASURED: benchmarks/decode.py failed or did not finish in time."
exit $((tests ? tests : speed))
