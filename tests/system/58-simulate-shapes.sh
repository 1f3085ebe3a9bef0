#!/bin/bash
# 32-simulate-trainer.sh over many more shapes, and the levers of many jobs by chance, each pulled by its flag.
SHAPES=all "$(dirname "$0")/32-simulate-trainer.sh" || failed=1
python3 "$(dirname "$0")/../planner/levers.py" "${BUILD:-build}/agoqctl" --random 6 300 || failed=1
exit "${failed:-0}"
