"""An agent as the world is: a tool that breaks, one that hangs, a judge behind a rate limit. It trains all the same.

    python examples/unreliable/judge.py &
    ajet swarm start --environment arith
    ajet client run examples/unreliable/ --restart --timeout 5 --sandbox process

Kill the process `swarm.environments play` as often as you like: it is started again.
"""

import json
import os
import random
import time
from urllib.parse import urlencode
from urllib.request import urlopen

JUDGE = os.environ.get("JUDGE", "http://127.0.0.1:9000")
BREAKS, HANGS = 0.1, 0.005


def calculator(episode):
    if random.random() < BREAKS:
        raise OSError("the calculator has lost its connection")  # its play is given up, and played again
    if random.random() < HANGS:
        time.sleep(3600)  # over after --timeout
    return f"{episode.task.data['left']}+{episode.task.data['right']}"


def agent(episode):
    reply = episode.chat([{"role": "user", "content": calculator(episode)}])
    asked = urlencode({**episode.task.data, "said": reply.content})
    with urlopen(f"{JUDGE}/?{asked}", timeout=10) as answer:  # raises for 429: played again after a pause
        right = json.load(answer)["right"]
    return float(right), right
