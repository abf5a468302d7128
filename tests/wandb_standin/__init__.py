"""A stand-in for W&B's server on loopback, which the real `wandb` client logs to and syncs to.

It answers what the client of the pinned version was seen to ask, keeps everything in memory, and fails where a test
tells it to. It picks one plain rule where W&B's own server has rules that nobody here knows (a run that is started
again, rate limits, how late a row can be read): what passes here is proven of the client and of this project's code,
not of W&B.

May enter: what the server says to the client.
"""

from tests.wandb_standin.server import StandIn, standing_in

__all__ = ["StandIn", "standing_in"]
