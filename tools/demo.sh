#!/bin/bash
# The whole system on CPUs: 4 pipeline stages x 2 data-parallel ranks train a small LLaMA on real text, once without agoq
# and once with it, while an operator cuts a budget and the daemon is killed and restarted. Ends with a report.
# DATA=file-or-folder (default: the licence texts of this machine), OUT=folder for the results, STEPS, SEED, and the shape
# below can be set from outside; the end-to-end test does so.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-build}")
OUT=${OUT:-$BUILD/demo}
DATA=${DATA:-/usr/share/common-licenses}
STEPS=${STEPS:-300} SEED=${SEED:-1} LR=${LR:-1e-3}
SHAPE=${SHAPE:---hidden 96 --ffn 256 --layers 8 --heads 6 --kv-heads 3 --seq 128 --mb-size 2 --microbatches 4}
BUDGET=${BUDGET:-7.9MiB} CUT_STAGE=${CUT_STAGE:-1} CUT_BUDGET=${CUT_BUDGET:-7.2MiB}
CUT_STEP=${CUT_STEP:-$((STEPS * 2 / 5))} KILL_STEP=${KILL_STEP:-$((STEPS * 3 / 5))} ADAM8_STEPS=${ADAM8_STEPS:-$((STEPS / 4))}

[ -e "$DATA" ] || { echo "DATA=$DATA: no such file or folder; give a text file, or a folder of them" >&2; exit 2; }
say() { printf '\n== %s\n' "$*"; }
mkdir -p "$OUT"
rm -rf "${OUT:?}"/{baseline,agoq,adam8,state} "$OUT"/*.json "$OUT"/*.svg "$OUT"/*.log "$OUT"/plan.txt "$OUT"/*.sock*
# A Unix socket's path is limited to about 100 bytes, so it does not live under OUT.
run=$(mktemp -d /tmp/agoq-demo.XXXXXX)
export AGOQ_SOCKET=$run/agoqd.sock
daemon=0
cleanup() {
    [ "$daemon" = 0 ] || kill "$daemon" 2> /dev/null || true
    [ -z "$(jobs -p)" ] || kill $(jobs -p) 2> /dev/null || true
    rm -rf "$run"
}
trap cleanup EXIT

. tools/mpi.sh
# shellcheck disable=SC2206
common=($SHAPE --data "$DATA" --pp 4 --dp 2 --schedule 1f1b --lr "$LR" --seed "$SEED")

start_daemon() {
    "$BUILD/agoqd" --foreground --config "$run/agoqd.yaml" --socket "$AGOQ_SOCKET" --state-dir "$OUT/state" 2>> "$OUT/agoqd.log" &
    daemon=$!
    for _ in $(seq 100); do
        "$BUILD/agoqctl" status > /dev/null 2>&1 && return
        sleep 0.1
    done
    echo "agoqd did not come up; its log: $OUT/agoqd.log" >&2
    exit 1
}
# The step that rank 0 reached, from its log.
step() { tail -n 1 "$OUT/agoq/rank-0.jsonl" 2> /dev/null | sed -n 's/.*"step": *\([0-9]*\).*/\1/p'; }
wait_for_step() {
    while [ "$(step || true)" = "" ] || [ "$(step)" -lt "$1" ]; do
        kill -0 "$train" 2> /dev/null || { echo "training ended before step $1" >&2; wait "$train"; exit 1; }
        sleep 0.1
    done
}
snapshot() { # NUMBER
    for what in budget plan history; do
        case $what in budget) words="budget get" ;; plan) words="plan show" ;; *) words="plan history" ;; esac
        # shellcheck disable=SC2086
        "$BUILD/agoqctl" --json $words > "$OUT/ctl-$what-$1.json"
    done
}

say "1. baseline: 16-bit saved activations, FP32 gradients, $STEPS steps"
"${mpi[@]}" -n 8 "$BUILD/agoq-train" "${common[@]}" --baseline --steps "$STEPS" --log-dir "$OUT/baseline"

say "2. agoq: agoqd plans the widths, gradients are FP8; budget $BUDGET for every rank"
sed "s/^default_budget:.*/default_budget: $BUDGET/" config/demo.yaml > "$run/agoqd.yaml"
start_daemon
"${mpi[@]}" -n 8 "$BUILD/agoq-train" "${common[@]}" --steps "$STEPS" --record-plan "$OUT/plan.txt" \
    --log-dir "$OUT/agoq" &
train=$!
wait_for_step "$CUT_STEP"
snapshot 1
say "the operator cuts stage $CUT_STAGE to $CUT_BUDGET"
"$BUILD/agoqctl" budget set --stage "$CUT_STAGE" "$CUT_BUDGET" --reason "another job needs memory on this node" --wait --timeout 60
"$BUILD/agoqctl" status
snapshot 2
wait_for_step "$KILL_STEP"
snapshot 1b
say "the daemon is killed (-9); training goes on"
kill -9 "$daemon"
wait "$daemon" 2> /dev/null || true
daemon=0
sleep 2
say "and started again"
start_daemon
wait "$train"
"$BUILD/agoqctl" --json plan history > "$OUT/ctl-history-2.json"
mv "$OUT/ctl-history-1b.json" "$OUT/ctl-history-1.json"

say "3. the same with 8-bit AdamW, $ADAM8_STEPS steps"
"${mpi[@]}" -n 8 "$BUILD/agoq-train" "${common[@]}" --steps "$ADAM8_STEPS" --adam 8bit --log-dir "$OUT/adam8"
kill "$daemon"
wait "$daemon" 2> /dev/null || true
daemon=0

say "4. report"
PYTHONDONTWRITEBYTECODE=1 python3 tools/demo_report.py "$OUT"
printf '\nfiles: %s %s\n' "$OUT/report.json" "$OUT/report.svg"
