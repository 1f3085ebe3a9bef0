#!/bin/bash
# What packing costs in training, at the demo's setting but with every planned role at 4 bits, which is less than any plan of
# the demo gives: mean over three seeds within 1 % of the baseline's, and at that
# learning rate an all-INT8 run ends within 0.3 % (so the setting is not chaotic and the first figure means something).
. "$(dirname "$0")/lib.sh"
export MPI_LIMIT=900
shape=$(sed -n 's/^SHAPE=${SHAPE:-\(.*\)}$/\1/p' tools/demo.sh)
run() { # NAME ARGS...
    local name=$1
    shift
    # shellcheck disable=SC2086
    run_mpi 8 "$BUILD/agoq-train" $shape --data /usr/share/common-licenses --pp 4 --dp 2 --steps 300 --lr 1e-3 --log-dir "$tmp/$name" \
        "$@" > "$tmp/$name.out" 2>&1 || not_ok "$name runs" "$(tail -n 3 "$tmp/$name.out" | tr '\n' ' ')"
}
for seed in 1 2 3; do
    run base$seed --seed $seed --baseline
    run agoq$seed --seed $seed --fixed-bits 4
done
run int8 --seed 1 --fixed-bits 8 --grads fp32
cat > "$tmp/check.py" << 'PY'
import json, sys
def final(name):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/rank-0.jsonl")]
    losses = [row["loss"] for row in rows if "step" in row]
    return sum(losses[-50:]) / 50
base, agoq = [final(f"base{s}") for s in (1, 2, 3)], [final(f"agoq{s}") for s in (1, 2, 3)]
ratio, int8 = sum(agoq) / sum(base), final("int8") / base[0]
pairs = " ".join(f"{a / b:.4f}" for a, b in zip(agoq, base))
name = f"three seeds at 4 bits, FP8 gradients: mean within 1 % of the baseline ({ratio:.4f}; {pairs})"
print(f"ok {name}" if abs(ratio - 1) <= 0.01 else f"not ok {name}")
name = f"INT8 within 0.3 % of the baseline ({int8:.4f})"
print(f"ok {name}" if abs(int8 - 1) <= 0.003 else f"not ok {name}")
PY
report "three seeds" python3 "$tmp/check.py" "$tmp"
