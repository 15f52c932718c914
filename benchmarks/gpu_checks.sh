#!/usr/bin/env bash
# What a CUDA GPU adds to the tests, in at most five minutes:
#
#     bash benchmarks/gpu_checks.sh            on a machine with a GPU, in a checkout with specviz and its tests' needs
#     bash benchmarks/gpu_checks.sh cpu        a rehearsal without one
#
# The exact law, the memories' invariant and ragged batches run there over every family and drafter, in float64; then
# the bundled pair in half precision, on two kinds of devices at once, and spread by accelerate.
#
# No GPU was at hand when this was written. It was rehearsed with "cpu", and with a stand-in for a device that refuses
# tensors of the CPU as CUDA does; a first run on a GPU may still find what only a GPU can show.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${1:-cuda}
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# The most telling first: if five minutes are too few, what is missing is the rest.
timeout --signal=INT 290 "$python" -m pytest --device "$device" -q --durations=5 \
    tests/test_cuda.py tests/test_seq2seq.py tests/test_drafters.py tests/test_memory.py tests/test_families.py \
    tests/test_exact_law.py
status=$?
[ $status -ne 2 ] && [ $status -ne 124 ] || echo "NOT FINISHED within five minutes, or interrupted: see how far it came."
exit $status
