"""The activity that gives a run the value of an artifact, where its code decides by it."""

from __future__ import annotations

from temporalio import activity

from activities.artifacts import READ_PAUSE, ArtifactUnavailable
from activities.attempt import Resources
from activities.endings import again
from workflows.contracts import ArtifactRead, ReadArtifact
from workflows.errors import ErrorType


class ContentActivities:
    """``read_artifact``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="read_artifact")
    async def read_artifact(self, asked: ReadArtifact) -> ArtifactRead:
        """Return the value of an artifact; tried again until the store has it."""
        try:
            value = await self._resources.artifacts.read(asked.tenant, asked.artifact)
        except ArtifactUnavailable as error:
            raise again(ErrorType.ARTIFACT_UNAVAILABLE, str(error), READ_PAUSE) from error
        return ArtifactRead(value=value)
