"""The database of a test, in the settings of Django."""

from __future__ import annotations

from typing import Any, Dict
from urllib.parse import parse_qs, urlsplit


def settings_of(postgres: str) -> Dict[str, Any]:
    """A broker's database, as Django names it."""
    url = urlsplit(postgres)
    name, host = url.path.lstrip("/"), parse_qs(url.query)["host"][0]
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": url.username, "HOST": host}
