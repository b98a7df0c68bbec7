"""Django settings for the database of a test."""

from __future__ import annotations

from typing import Any, Dict
from urllib.parse import parse_qs, urlsplit


def settings_of(postgres: str) -> Dict[str, Any]:
    """Converts the database URL of a broker to an entry of Django's ``DATABASES``."""
    url = urlsplit(postgres)
    name, host = url.path.lstrip("/"), parse_qs(url.query)["host"][0]
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": url.username, "HOST": host}
