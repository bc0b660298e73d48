"""The identity provider as the settings name it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from surehand.cli.approvals_server.identity_provider import ClientOf, IdentityProvider, is_private
from surehand.cli.approvals_server.oidc import OidcSignIn, Registered
from surehand.cli.approvals_server.subjects import Subjects
from surehand.process.exits import WrongUse
from surehand.process.settings import PREFIX

if TYPE_CHECKING:
    from surehand.activities.worker.settings import Settings

#: In place of a secret: it is in a file.
_FILE: Final = "file:"
_OTHERS: Final = 0o077


def oidc_of(settings: Settings, tenant: str, registered: Registered) -> OidcSignIn | None:
    """Return how people sign in by the identity provider that is set; ``None``: none is.

    Args:
        settings: ``oidc_issuer`` and those that go with it.
        tenant: Whose principals its subjects are.
        registered: Whether there is a principal of a name.

    Raises:
        WrongUse: One is missing or wrong.
    """
    if not settings.oidc_issuer:
        return None
    client = client_of(settings)
    if not settings.oidc_principals:
        raise _wrong("principals", "is missing: name the file that says who the subjects are")
    subjects = Subjects(Path(settings.oidc_principals), tenant)
    return OidcSignIn(IdentityProvider(client), subjects, registered=registered)


def client_of(settings: Settings) -> ClientOf:
    """Return what the provider knows this server as.

    Raises:
        WrongUse: A setting is missing or wrong; no message shows the secret.
    """
    if not is_private(settings.oidc_issuer) or "?" in settings.oidc_issuer:
        raise _wrong("issuer", "looks like https://login.example.com: http is for this machine")
    if not settings.oidc_client_id:
        raise _wrong("client_id", "is missing: the provider gives it to you")
    return ClientOf(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=_secret(settings.oidc_client_secret.get_secret_value()),
        claim=settings.oidc_claim,
    )


def _secret(given: str) -> str:
    if not given.startswith(_FILE):
        return given
    file = Path(given.removeprefix(_FILE))
    try:
        with file.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if os.name == "posix" and stat.S_IMODE(mode) & _OTHERS:
                raise _wrong("client_secret", f"{file} can be read by others: chmod 600 {file}")
            secret = opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _wrong("client_secret", f"{file} cannot be read: {reason}") from error
    if not secret:
        raise _wrong("client_secret", f"{file} is empty")
    return secret


def _wrong(name: str, what: str) -> WrongUse:
    return WrongUse(f"setting {PREFIX}OIDC_{name.upper()} {what}")
