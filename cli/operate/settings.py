"""``settings``: every setting with its value, and where that comes from."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from surehand.cli.verb import options
from surehand.cli.verb.docstrings import field_docstrings
from surehand.cli.verb.printer import Reply, Table
from surehand.cli.verb.shapes import SettingList, SettingShown
from surehand.process.exits import WrongUse
from surehand.process.settings import PREFIX, Sources, given_sources

#: Passwords in URLs: before the last ``@``, and in the query.
_IN_AUTHORITY: Final = re.compile(r"(://[^/:@?#]*:)[^?#]*@")
_IN_QUERY: Final = re.compile(r"([?&][^=&]*(?:pass|secret|token|key|sig)[^=&]*=)[^&]*", re.I)
_UNITS: Final = {"largest_inline": "bytes"}


def settings(
    caller: options.Unjudged,
) -> Reply:
    """Show all settings: value, unit, origin (default, file, .env, environment) and meaning.

    Example: python starter.py settings --json
    """
    sources = given_sources()
    shown = _shown(sources)
    file = str(sources.file) if sources.file else None
    rows = [[one.variable, _text(one), one.origin, one.meaning] for one in shown]
    return Reply(
        SettingList(file=file, settings=shown),
        [
            Table(("setting", "value", "origin", "meaning"), rows),
            f"Settings file: {file or 'none'}",
        ],
    )


def _shown(sources: Sources) -> list[SettingShown]:
    from surehand.activities.worker.settings import (
        Settings,
        SettingsError,
        judge_settings,
        missing_settings,
    )

    missing = missing_settings(sources)
    try:
        judged = judge_settings(sources, without=missing)
    except SettingsError as error:
        raise WrongUse(str(error)) from error
    rows = []
    texts = field_docstrings(Settings)
    for name in Settings.model_fields:
        given = sources.settings.get(name)
        value, unit = _plain(None if name in missing else getattr(judged, name))
        rows.append(
            SettingShown(
                name=name,
                variable=f"{PREFIX}{name.upper()}",
                value=value,
                unit=_UNITS.get(name, unit),
                origin="missing" if name in missing else given.origin if given else "default",
                meaning=" ".join(texts.get(name, "").replace("``", "").split()),
            )
        )
    return rows


def _plain(value: Any) -> tuple[Any, str]:
    """Return a setting's value as JSON, without passwords, and its unit."""
    if isinstance(value, timedelta):
        return value.total_seconds(), "s"
    if isinstance(value, tuple):
        plain = [_plain(one) for one in value]
        return [one for one, _ in plain], plain[0][1] if plain else ""
    if isinstance(value, SecretStr):
        return _hidden(value.get_secret_value()), ""
    if isinstance(value, str) and "://" in value:
        return _IN_QUERY.sub(r"\1***", _IN_AUTHORITY.sub(r"\1***@", value)), ""
    return value, ""


def _hidden(value: str) -> str:
    """Return a secret as ``***``, or the server's name of a URL that may carry one."""
    parts = urlsplit(value) if "://" in value else None
    return f"{parts.scheme}://{parts.hostname}/***" if parts else "***" if value else ""


def _text(one: SettingShown) -> str:
    if one.value is None:
        return "(must be set)"
    values = one.value if isinstance(one.value, list) else [one.value]
    text = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} {one.unit}".rstrip() if text else ""
