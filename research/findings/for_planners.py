"""What a planner finds of earlier studies of its home, by words: verdicts in sentences, negative ones too."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from research.findings.collected import known_findings
from research.findings.known import KnownFinding
from research.findings.search import find
from research.installation.home import Home
from research.planner.quoted import Quoted
from studies import EventLog

_LEAST: Final = 3
"""Letters of a word that says something."""


@dataclass(frozen=True, slots=True)
class HomeFindings:
    """The findings of an installation, but for those of one study, which its planner is shown anyway."""

    home: Home
    log: EventLog
    besides: str

    def find(self, words: str, most: int) -> tuple[Quoted, ...]:
        """Return at most so many findings, those that most of the words name first; of no words the newest."""
        known = [entry for entry in known_findings(self.home, self.log).findings if entry.study != self.besides]
        wanted = dict.fromkeys(word.lower() for word in words.split() if len(word) >= _LEAST)
        if not wanted:
            return tuple(map(_quoted, known[:most]))
        named = Counter(entry.name for word in wanted for entry in find(known, [word]))
        likely = sorted((entry for entry in known if named[entry.name]), key=lambda entry: -named[entry.name])
        return tuple(map(_quoted, likely[:most]))


def _quoted(finding: KnownFinding) -> Quoted:
    return Quoted(finding.name, sentence(finding))


def sentence(finding: KnownFinding) -> str:
    """Return a finding in a sentence: claim, verdict, effect with its interval, runs."""
    told = f"{finding.claim.rstrip('.')}: {finding.verdict}"
    if finding.estimate is not None and finding.low is not None and finding.high is not None:
        told += f", difference {finding.estimate:+.3g} ({finding.low:+.3g} to {finding.high:+.3g})"
    again = ", exploratory" if finding.exploratory else ""
    return f"{told}, {finding.n_control} + {finding.n_treatment} runs of {finding.conditions.model}{again}"
