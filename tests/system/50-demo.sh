#!/bin/bash
# The demo itself on a smaller model: every figure that its report must show.
. "$(dirname "$0")/lib.sh"
export OUT=$BUILD/demo-small STEPS=300 ADAM8_STEPS=150
export SHAPE="--hidden 64 --ffn 176 --layers 4 --heads 4 --kv-heads 2 --seq 64 --mb-size 2 --microbatches 4"
export BUDGET=2.14MiB CUT_BUDGET=1.92MiB
if check "demo runs" tools/demo.sh; then
    report "figures of the report" python3 tools/demo_check.py "$OUT/report.json"
    check "the picture is well-formed XML" python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$OUT/report.svg"
fi
