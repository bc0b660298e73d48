"""What the payload codec asks of whoever encrypts: a port, and which run a payload is of.

The bodies are in ``process/ciphers.py``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from temporalio.api.common.v1 import Payload

from surehand.workflows.identity import root_run_id

ENCODING_KEY: Final = "encoding"
#: The encoding of what is encrypted, as Temporal's own examples have it.
ENCRYPTED: Final = b"binary/encrypted"
#: The run whose key it is encrypted with. Whoever decrypts goes by it: lists, the Web UI and the
#: command line of Temporal have no context.
KEY_ID: Final = "encryption-key-id"
#: The workflow that it goes into or comes from, which may be a child run, and the part of it.
WORKFLOW_ID: Final = "workflow-id"
PART: Final = "part"
#: A bound of what encrypting adds to a payload, in bytes.
ADDED: Final = 768


class KeyUnavailable(Exception):
    """A key cannot be had now, or not with what is set here; what it is for is not lost."""


class NotDecrypted(Exception):
    """It is nothing that was encrypted for this place, or its key is no more."""


class KeyErased(NotDecrypted):
    """The run was erased: its key is no more, so nobody reads what the run has sent and kept."""

    def __init__(self, root: str, by: str, at: str) -> None:
        """Make it; ``by`` and ``at`` say who has erased it, and when."""
        super().__init__(
            f"run {root[:200]} was erased by {by} on {at}: nobody can read what it sent and kept"
        )
        self.root, self.by, self.at = root, by, at


class Pasted(NotDecrypted):
    """It is in plain, or encrypted for no run: it counts only where people send something."""

    def __init__(self, reason: str, payload: Payload) -> None:
        """Make it; ``payload`` is in plain."""
        super().__init__(reason)
        self.payload = payload


class Part(StrEnum):
    """What of a workflow a payload is of."""

    WORKFLOW = "workflow"
    """Its input and output, what is sent to it and asked of it."""
    ACTIVITY = "activity"
    """What goes into its activities and comes out of them."""
    ANY = "any"
    """Nobody has said so: Temporal's command line, whose payloads only name their tenant."""


class Place(NamedTuple):
    """Where a payload belongs; it counts nowhere else."""

    workflow_id: str
    part: Part

    @property
    def root(self) -> str:
        """The run whose key is the payload's."""
        return root_run_id(self.workflow_id)

    def holds(self, named: Place) -> bool:
        """Return whether what says that it belongs to a place may be taken here."""
        if self.root != named.root or self.part is not named.part:
            return False
        # Those of a schedule have the time behind the id that they were made for.
        return self.workflow_id == named.workflow_id or is_upkeep(self.root)


def is_upkeep(root: str) -> bool:
    """Return whether that is no run, but what keeps a tenant's ledger in order."""
    return root == "" or root.endswith("/")


def place_named(payload: Payload) -> Place:
    """Return the place that an encrypted payload says it belongs to.

    Raises:
        NotDecrypted: It says none that there can be.
    """
    named = (payload.metadata.get(name, b"") for name in (WORKFLOW_ID, PART, KEY_ID))
    try:
        workflow_id, part, key_id = (value.decode() for value in named)
        place = Place(workflow_id, Part(part))
        if place.root != key_id:
            raise ValueError("two runs")
    except ValueError as error:
        raise NotDecrypted("it does not say what it was encrypted for") from error
    return place


def require_place(payload: Payload, place: Place | None) -> Place:
    """Return the place that an encrypted payload is of.

    Raises:
        NotDecrypted: It is of another one than where it was found.
    """
    named = place_named(payload)
    if place is not None and not place.holds(named):
        raise NotDecrypted(
            f"it was encrypted for {_shown(named)}, and was found at {_shown(place)}"
        )
    return named


def _shown(place: Place) -> str:
    return f"{place.part} {place.workflow_id[:200]!r}"


class Encryption(Protocol):
    """Encrypts payloads with the key of their run."""

    async def encrypt(self, payload: Payload, place: Place, *, kept: bool) -> Payload:
        """Encrypt a payload.

        Args:
            kept: It goes into the artifact store: the same content comes out the same each time,
                so that a run that is replayed keeps it once.

        Raises:
            KeyUnavailable: The key cannot be had now.
            NotDecrypted: The run's key is no more.
        """

    async def decrypt(self, payload: Payload, place: Place | None) -> Payload:
        """Decrypt a payload.

        Args:
            place: Where it was found; ``None``: nobody knows, and what it says itself counts.

        Raises:
            KeyUnavailable: The key cannot be had now.
            NotDecrypted: It was not encrypted for that place, or was changed, or its key is no
                more.
        """
