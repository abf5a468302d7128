"""Artifacts as the stand-in keeps them: begun, given a manifest and files, committed."""

from __future__ import annotations

import base64
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from tests.wandb_standin.runs import moment, node_id


@dataclass(slots=True)
class StoredArtifact:
    """One version of an artifact."""

    id: str
    entity: str
    project: str
    run: str
    type: str
    name: str
    digest: str
    metadata: str | None
    aliases: list[str]
    committed: bool = False
    manifest: str = ""
    created: str = field(default_factory=moment)

    def gql(self) -> dict[str, Any]:
        project = {"id": node_id("Project", self.project), "internalId": "1", "name": self.project,
                   "entity": {"name": self.entity}}  # fmt: skip
        collection = {"__typename": "ArtifactSequence", "id": node_id("Sequence", self.name), "name": self.name,
                      "project": project, "latestArtifact": None}  # fmt: skip
        alias = [{"__typename": "ArtifactAlias", "id": node_id("Alias", self.id, alias), "alias": alias,
                  "artifactCollection": collection} for alias in self.aliases]  # fmt: skip
        return {
            "__typename": "Artifact", "id": self.id, "artifactSequence": collection, "versionIndex": 0,
            "artifactType": {"name": self.type}, "description": None, "metadata": self.metadata,
            "ttlDurationSeconds": -2, "ttlIsInherited": True, "tags": [], "historyStep": None,
            "state": "COMMITTED" if self.committed else "PENDING", "digest": self.digest, "size": 0,
            "digestAlgorithm": "MANIFEST_MD5", "commitHash": self.digest, "fileCount": 1, "createdAt": self.created,
            "updatedAt": None, "aliases": alias,
        }  # fmt: skip


class Artifacts:
    """All artifacts, and the bytes that were put for them."""

    def __init__(self) -> None:
        self.by_id: dict[str, StoredArtifact] = {}
        self.blobs: dict[str, bytes] = {}
        self._count = itertools.count(1)

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of the committed artifact of a name, by their names in it."""
        found = next(each for each in self.by_id.values() if each.name == name and each.committed)
        contents = json.loads(self.blobs[found.manifest])["contents"]
        return {path: self.blobs[_place(entry["digest"])] for path, entry in contents.items()}

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("artifactCollectionName") or given["artifactCollectionNames"][0]
        made = StoredArtifact(
            node_id("Artifact", next(self._count)), given["entityName"], given["projectName"],
            given.get("runName") or "", given["artifactTypeName"], name, given["digest"], given.get("metadata"),
            [alias["alias"] for alias in given.get("aliases") or []],
        )  # fmt: skip
        self.by_id[made.id] = made
        return {"createArtifact": {"artifact": made.gql()}}

    def create_manifest(self, given: dict[str, Any], base: str) -> dict[str, Any]:
        key = f"manifest/{next(self._count)}"
        self.by_id[given["artifactID"]].manifest = key
        file = {"id": node_id("File", key), "uploadUrl": f"{base}/storage/{key}", "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": node_id("Manifest", key), "file": file}}}

    def create_files(self, given: dict[str, Any], base: str) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = [
            {"storagePath": key, "uploadUrl": f"{base}/storage/{key}", "uploadHeaders": [],
             "uploadMultipartUrls": None, "artifact": {"id": spec["artifactID"]}}
            for spec in given.get("input", given)["artifactFiles"]
            for key in [_place(spec["md5"])]
        ]  # fmt: skip
        edges = [{"node": node, "cursor": str(at)} for at, node in enumerate(nodes)]
        return {
            "createArtifactFiles": {"files": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}}
        }

    def commit(self, given: dict[str, Any]) -> dict[str, Any]:
        made = self.by_id[given["artifactID"]]
        made.committed = True
        return {"commitArtifact": {"artifact": made.gql()}}


def _place(md5: str) -> str:
    return f"artifact/{base64.b64decode(md5).hex()}"
