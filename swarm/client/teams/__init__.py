"""Teams: one agent function that plays with several models on several servers, each trained by its own rewards.

    await Team.rollout({"speaker": client_a, "listener": client_b}, tasks, play)    # play(team) -> reward by role

May enter: what the members of a team have in common. A member by itself is an `Episode` of its own server.
"""

from swarm.client.teams.loop import TeamResult, TeamSummary
from swarm.client.teams.synchronous import SyncTeam
from swarm.client.teams.team import Team, TeamAgent

__all__ = ["SyncTeam", "Team", "TeamAgent", "TeamResult", "TeamSummary"]
