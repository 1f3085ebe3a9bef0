#!/bin/bash
# --dump-activations: what is packed, in one step's first micro-batch of the first replica, complete and read back by
# the accuracy benchmark; training does not notice.
. "$(dirname "$0")/lib.sh"

python3 -c "
import random; random.seed(5)
print(' '.join(random.choice('one rank packs what another reads and neither asks twice'.split()) for _ in range(4000)))" > "$tmp/text"
run() { # RANKS OPTIONS...
    run_mpi "$1" "$BUILD/agoq-train" --data "$tmp/text" --hidden 32 --ffn 48 --layers 4 --heads 4 --kv-heads 2 --seq 24 \
        --mb-size 2 --microbatches 2 --steps 3 "${@:2}"
}

same_loss() { [ -n "$1" ] && [ "$1" = "$2" ]; }
complete() {
    python3 - "$1" << 'EOF_PY'
import array, glob, math, os, re, sys
want = {"attn_norm_in": 4, "mlp_norm_in": 4, "attn_qkv": 4, "attn_out": 4, "mlp_gate_up": 8, "final_norm_in": 1}
found = {}
for path in glob.glob(sys.argv[1] + "/*"):
    role, layer, serial, rows, cols = re.fullmatch(r"(\w+)\.(\d+)\.(\d+)\.(\d+)x(\d+)\.f32", os.path.basename(path)).groups()
    found[role] = found.get(role, 0) + 1
    x = array.array("f", open(path, "rb").read())
    assert int(rows) == 48 and len(x) == 48 * int(cols), path # 2 sequences of 24 tokens
    assert all(map(math.isfinite, x)) and any(x), path
    assert cols == {"mlp_gate_up": "48", "attn_qkv": "64"}.get(role, "32"), path
assert found == want, f"{found} {want}"
EOF_PY
}

plain=$(run 4 --pp 2 --dp 2 --fixed-bits 6 2>&1 | grep "^done:")
dumped=$(run 4 --pp 2 --dp 2 --fixed-bits 6 --dump-activations "$tmp/dump" --dump-step 1 2>&1 | grep "^done:")
check "training is the same with a dump" same_loss "$plain" "$dumped"
check "every packed tensor of a micro-batch, once" complete "$tmp/dump"
touch "$tmp/file"
says() { run 1 "$@" > "$tmp/said" 2>&1 && return 1; grep -q "$words" "$tmp/said" || { head -n 3 "$tmp/said"; return 1; }; }
words="dump: .*Not a directory" check "a folder that is none is said" says --fixed-bits 6 --dump-activations "$tmp/file"
words="packs nothing" check "a baseline has nothing to dump" says --baseline --dump-activations "$tmp/dump2"
words="dump-step 3 does not come: the last step is 2" check "no dump of a step that does not come" says --fixed-bits 6 --dump-activations "$tmp/late" --dump-step 3
words="dump-step 1 does not come: the last step is 0" check "nor after the stop" says --fixed-bits 6 --dump-activations "$tmp/late" --dump-step 1 --stop-at 1
check "and no folder for it" test ! -e "$tmp/late"
words="dump-step needs --dump-activations" check "a step of no dump" says --fixed-bits 6 --dump-step 1
run 1 --fixed-bits 6 --stop-at 2 --checkpoint-dir "$tmp/saved" --checkpoint-every 2 > /dev/null 2>&1
words="dump-step 1 is before step 2" check "a step before the checkpoint" says --fixed-bits 6 --checkpoint-dir "$tmp/saved" --resume --dump-activations "$tmp/late" --dump-step 1
words="of another run: give an empty folder" check "a folder with dumps of another run" says --fixed-bits 6 --dump-activations "$tmp/dump" --dump-step 1
check "which stays as it was" complete "$tmp/dump"
