#!/bin/bash
# 32-simulate-trainer.sh over many more shapes.
SHAPES=all exec "$(dirname "$0")/32-simulate-trainer.sh"
