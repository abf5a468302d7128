#!/usr/bin/env bash
# A study on gymnasium's FrozenLake: each task is a lake of its own, and the best way over it is known, so that a tiny
# model can begin by imitating somebody who goes it half of the time.
#   pip install 'gymnasium==1.4.0'      (or apart from all else, by the line that ajet gives without it)
exec ajet research "Does a larger group size help GRPO on FrozenLake?" \
  --env 'gymnasium:FrozenLake-v1?is_slippery=false&max_episode_steps=20&tasks=256' "$@"
