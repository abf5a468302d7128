#!/usr/bin/env bash
# A study on a game of textarena, over several turns. There are no demonstrations to begin from: name a model of your
# own (--model-path DIR) that breaks a code now and then.
#   pip install 'textarena==0.7.4'
exec ajet research "Does a larger group size help GRPO in this game?" \
  --env 'textarena:Mastermind-v0?code_length=3&tasks=64' "$@"
