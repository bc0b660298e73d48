"""What the verbs of ``principal`` are given: names, roles, permissions and public keys."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.exits import WrongUse
from cli.text import plain
from workflows.contracts.base import LONGEST_NAME
from workflows.policy import ROLE_FORM

if TYPE_CHECKING:
    from activities.ledger.principals import Kind

#: In place of a file's name: the key comes from stdin.
STDIN: Final = "-"
#: Bytes; a public key has about 120.
_LARGEST_FILE: Final = 16_384


def checked_name(name: str) -> str:
    """Return a principal's name.

    Raises:
        WrongUse: Somebody could take it for another one.
    """
    normal = unicodedata.normalize("NFC", name)
    if not 1 <= len(name) <= LONGEST_NAME:
        why = f"a name has 1 to {LONGEST_NAME} characters"
    elif name.strip() != name:
        why = "a name has no blanks before or after it"
    elif plain(name) != name:
        why = "a name has no control characters, nor others that cannot be seen"
    elif normal != name:
        why = f"a name is NFC-normalised, use this spelling of it: {normal!r}"
    else:
        return name
    raise WrongUse(f"principal {name[:40]!r}: {why}")


def checked_grants(
    roles: Sequence[str] | None, permissions: Sequence[str] | None
) -> list[tuple[Kind, str]]:
    """Return roles and permissions, each once.

    Raises:
        WrongUse: No policy could name one of them.
    """
    wanted: list[tuple[Kind, str]] = [("role", role) for role in roles or ()]
    wanted += [("permission", permission) for permission in permissions or ()]
    for kind, what in wanted:
        if not re.fullmatch(ROLE_FORM, what):
            raise WrongUse(
                f"{kind} {what[:40]!r}: use 1 to 80 letters, digits, '_', '.', ':' and '-'"
            )
    return list(dict.fromkeys(wanted))


def read_public_key(file: Path) -> tuple[str, dict[str, str]]:
    """Return the key id and the JWK of the public key in a file, or on stdin.

    Raises:
        WrongUse: It cannot be read, or is not one public key.
    """
    from activities.public_keys import BadKey, kid_of, public_key

    try:
        with open(0 if str(file) == STDIN else file, "rb", closefd=str(file) != STDIN) as source:
            content = source.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise BadKey("it is too large for a key")
        jwk = public_key(content.decode())
        return kid_of(jwk), jwk
    except OSError as error:
        raise WrongUse(f"public key {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"public key {file}: it is neither PEM nor a JWK") from error
    except BadKey as error:
        raise WrongUse(f"public key {file}: {error}") from error
