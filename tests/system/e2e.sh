# Sourced after lib.sh by the end-to-end tests: a daemon and training runs on a small model, and readers of their logs.
export AGOQ_SOCKET=$tmp/agoqd.sock
small="--hidden 32 --ffn 96 --layers 4 --heads 4 --kv-heads 2 --seq 64 --mb-size 2 --microbatches 4 --lr 1e-3
    --data /usr/share/common-licenses"

# start_daemon [ARGS...]: agoqd on $tmp/agoqd.yaml, log in $tmp/agoqd.log, pid in $daemon; waits until it answers.
start_daemon() {
    [ -e "$tmp/agoqd.yaml" ] || printf 'default_budget: %s\nmargin: 2%%\n' "${BUDGET:-4MiB}" > "$tmp/agoqd.yaml"
    "$BUILD/agoqd" --foreground --config "$tmp/agoqd.yaml" --socket "$AGOQ_SOCKET" --state-dir "$tmp/state" "$@" 2>> "$tmp/agoqd.log" &
    daemon=$!
    wait_for 20 "$BUILD/agoqctl" status || not_ok "daemon comes up" "$(tail -n 3 "$tmp/agoqd.log" | tr '\n' ' ')"
}
# train NAME RANKS ARGS...: runs to its end; logs in $tmp/NAME, output in $tmp/NAME.out.
train() {
    local name=$1 n=$2
    shift 2
    # shellcheck disable=SC2086
    run_mpi "$n" "$BUILD/agoq-train" $small --log-dir "$tmp/$name" "$@" > "$tmp/$name.out" 2>&1
}
step_of() { tail -n 1 "$tmp/$1/rank-0.jsonl" 2> /dev/null | sed -n 's/.*"step": *\([0-9]*\).*/\1/p'; }
reached() { [ "$(step_of "$1")" ] && [ "$(step_of "$1")" -ge "$2" ]; } # NAME STEP
planned() { grep -q '"plan": *"[0-9]' "$tmp/$1/rank-0.jsonl"; }         # NAME: a planned step was logged
# field NAME RANK FIELD: that field of every step line, one a line.
field() {
    python3 - "$tmp/$1/rank-$2.jsonl" "$3" << 'PY'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "step" in row:
        print(repr(row[sys.argv[2]]))
PY
}
hashes() { grep -ho '"weights_hash": *"[^"]*"' "$tmp/$1"/rank-*.jsonl; } # NAME: of all ranks
# ask JSON-PATH WORDS...: runs agoqctl --json WORDS and prints one value, path as a Python expression on `r`.
ask() {
    local path=$1
    shift
    "$BUILD/agoqctl" --json "$@" | python3 -c "import json,sys; r = json.load(sys.stdin); print($path)"
}
