"""Whether a study's logs are sent to Weights & Biases: the one rule, in W&B's own words.

1. `WANDB_MODE` (else `mode` in W&B's settings file) that is not `online`, or `WANDB_DISABLED`: nothing is sent.
2. A key of the server (`WANDB_API_KEY`, else the line that `wandb login` wrote into ~/.netrc): a copy is sent.
3. Else nothing is sent.

The server is `WANDB_BASE_URL`, else that of W&B's settings file, else the cloud that W&B's client knows.
`WANDB_ENTITY` and `WANDB_PROJECT` say where on it. A study keeps what it began with: a resume may find another key,
never another choice. Nothing is asked of any server here, and the key is looked at, not kept.
"""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as BadSettings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

CLOUD_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""Under which `wandb login` writes down a key of W&B's cloud, by the client's version."""
SHORTEST_KEY = 40
"""Characters; W&B's own client refuses a shorter one."""
_YES = {"1", "true", "yes", "on"}


class OnlineLogging(BaseModel):
    """Where a study's logs are sent, as its settings record it; no key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = ""
    """Scheme, host and port of W&B's server; empty for W&B's cloud."""
    entity: str = ""
    """User or team; empty for whoever is logged in."""
    project: str = "ajet"

    @property
    def server(self) -> str:
        """The server in words."""
        return self.base_url or "W&B's cloud"


@dataclass(frozen=True, slots=True)
class WandbLogin:
    """What the rule says here and now, and why; `online` is None where nothing is sent."""

    online: OnlineLogging | None
    why: str


def wandb_login(environ: Mapping[str, str]) -> WandbLogin:
    """Return whether logs are sent to W&B, by an environment and the user's files."""
    settings = _settings(environ)
    mode = environ.get("WANDB_MODE") or settings.get("mode", "")
    if mode not in ("", "online"):
        return WandbLogin(None, f"W&B's mode is {mode}")
    if environ.get("WANDB_DISABLED", "").lower() in _YES:
        return WandbLogin(None, "WANDB_DISABLED is set")
    base_url = _address(environ.get("WANDB_BASE_URL") or settings.get("base_url", ""))
    if base_url is None:
        return WandbLogin(None, "WANDB_BASE_URL is no address; expected http://HOST:PORT or https://HOST")
    problem, source = _key(environ, base_url)
    if problem:
        return WandbLogin(None, problem)
    online = OnlineLogging(
        base_url=base_url,
        entity=environ.get("WANDB_ENTITY") or settings.get("entity", ""),
        project=environ.get("WANDB_PROJECT") or "ajet",
    )
    return WandbLogin(online, source)


def online_logging_of(settings: Mapping[str, Any]) -> OnlineLogging | None:
    """Return where a study that was created with these settings sends its logs; None for nowhere."""
    found = settings.get("wandb")
    return None if found is None else OnlineLogging.model_validate(found)


def _key(environ: Mapping[str, str], base_url: str) -> tuple[str, str]:
    """Return why no key can be used (else empty), and where one was found."""
    if key := environ.get("WANDB_API_KEY"):
        if len(key) < SHORTEST_KEY:
            return f"WANDB_API_KEY has {len(key)} characters; a key has {SHORTEST_KEY}", ""
        return "", "WANDB_API_KEY is set"
    hosts = (urlsplit(base_url).netloc,) if base_url else CLOUD_HOSTS
    for path in _netrc_files(environ):
        try:
            entries = netrc.netrc(path)
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError) as error:
            return f"cannot read {path}: {error}", ""
        known = next((host for host in hosts if (found := entries.authenticators(host)) and found[2]), None)
        return ("", f"logged in to {known}") if known else (f"not logged in to {hosts[0]}", "")
    return f"not logged in to {hosts[0]}", ""


def _netrc_files(environ: Mapping[str, str]) -> list[Path]:
    if path := environ.get("NETRC"):
        return [Path(path).expanduser()]
    return [_home(environ) / ".netrc", _home(environ) / "_netrc"]


def _settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return what W&B's settings file of this user says; nothing where there is none that can be read."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(_settings_folder(environ) / "settings")
    except (BadSettings, OSError, UnicodeDecodeError):  # W&B's client says so itself when it is used
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}


def _settings_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("WANDB_CONFIG_DIR") or str(_home(environ) / ".config" / "wandb")).expanduser()


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _address(text: str) -> str | None:
    """Return scheme, host and port of an address, without a user or a path; None for what is no address."""
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"
