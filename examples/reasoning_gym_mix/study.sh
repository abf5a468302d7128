#!/usr/bin/env bash
# A study on a mix of two generators of reasoning-gym: results are told apart by generator. Name a model of your own
# that answers some of these (--model-path DIR); the tiny one only learns the form.
#   pip install 'reasoning-gym==0.1.25'
exec ajet research "Does a larger group size help GRPO on these tasks?" \
  --env 'reasoning-gym:chain_sum+leg_counting?chain_sum.max_terms=3&leg_counting.max_animals=4&tasks=256' "$@"
